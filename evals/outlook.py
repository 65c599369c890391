"""What the next gate of a model can show, before its samples and labels are paid for."""

import math
from datetime import datetime, timedelta

from evals import ledger
from evals.records import EvalReport
from evals.statistics import normal_quantile
from pipeline.core import layout
from pipeline.core.storage import Record, Store
from pipeline.recipe import Evaluation

POWER = 0.8
MOST_NIGHTS = 7


class Outlook(Record):
    """`standard_error`: of a target's paired difference at the last gate, the largest; None before the first gate."""

    level: float
    most_error: float
    """The standard error above which no gate decides, `evaluation.max_standard_error`."""
    standard_error: float | None = None
    last: datetime | None = None
    """When the last gate was entered."""
    nights: int = 1
    """Nights of traces that a gate is worth its samples with."""

    @property
    def gain(self) -> float:
        """The gain that the next gate shows with a power of 0.8; at most, before the first gate measured its error."""
        error = self.most_error if self.standard_error is None else self.standard_error
        return (normal_quantile(1 - self.level) + normal_quantile(POWER)) * error

    def line(self) -> str:
        """For a person."""
        most = "at most " if self.standard_error is None else ""
        shows = f"shows a gain of {most}{100 * self.gain:.1f} points with a power of {POWER}"
        worth = f", and is worth its samples after {self.nights} nights" if self.nights > 1 else ""
        return f"level {self.level:.4f}, {shows}{worth}"

    def collects(self, now: datetime) -> str:
        """Why no iteration begins by itself now, and when one does; "" where one may."""
        # A gate is entered some hours after its night's run began.
        due = None if self.last is None else self.last + timedelta(days=self.nights - 0.5)
        if due is None or now >= due or self.nights == 1:
            return ""
        return (
            f"This night collects: the next gate has {self.line()}. An iteration begins after {due:%Y-%m-%d %H:%M} "
            "UTC; more items or samples_per_item, or a larger evaluation.expected_gain, bring it forward."
        )


def outlook(store: Store, section: Evaluation, model_name: str, champion: str, now: datetime) -> Outlook:
    """Of the model's next gate. `champion`: the digest of who serves now. Raises ValueError for a ledger that cannot be
    read."""
    entered = ledger.lines(store, model_name)
    level, most = ledger.next_level(entered, section.false_discovery_rate, champion, now), section.max_standard_error
    if not entered:
        return Outlook(level=level, most_error=most)
    last = entered[-1]
    report = store.read(layout.iteration(last.iteration, layout.EVAL_REPORT), EvalReport)
    error = None if report is None else _largest_error(report)
    nights = 1 if error is None else nights_worth(level, error, section.expected_gain)
    return Outlook(level=level, most_error=most, standard_error=error, last=last.at, nights=nights)


def nights_worth(level: float, error: float, expected: float) -> int:
    """Nights of traces after which a gate of this level and standard error has a power of 0.5, where those of one night
    are expected to bring a gain of `expected` and those of n nights sqrt(n) times as much."""
    nights = (normal_quantile(1 - level) * error / expected) ** 2
    return min(max(math.ceil(nights), 1), MOST_NIGHTS)


def _largest_error(report: EvalReport) -> float | None:
    """Of the targets' differences; None where none was measured."""
    targets = {each.name for each in report.section.targets}
    asked = [(each.suite, each.comparison) for each in report.measurements]
    errors = [each.difference.standard_error for name, each in asked if each is not None and name in targets]
    rated = [(each.suite, each.win_rate) for each in report.judged]
    errors += [each.controlled.standard_error for name, each in rated if each is not None and name in targets]
    return max(errors, default=None)
