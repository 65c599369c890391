"""What people see of one iteration and of all. Shares are in [0, 1], times in seconds since the epoch."""

from typing import Literal

from evals.measurements import ConfidenceInterval
from k8s.estimate import Range
from pipeline.core.storage import Record

State = Literal[
    "in progress",
    "unfinished",
    "not trained",
    "stopped",
    "refused",
    "held",
    "registered",
    "in rollout",
    "promoted",
    "rolled back",
    "aborted",
    "superseded",
    "unreadable",
]
"""`unfinished`: a newer iteration was begun before it ended. `rolled back`: also after a promotion. `unreadable`: its
records are damaged or gone."""
HUNDREDTH = 0.01


class CostLine(Record):
    """One thing that was paid for. `usd` is None where it is unknown, and `why` says why."""

    name: str
    usd: Range | None
    why: str = ""
    device_hours: float | None = 0.0
    """Of our own devices; None where no record has it, and `why_hours` says so. 0 for what others run."""
    why_hours: str = ""


class CostTotal(Record):
    """The sum of what is known, and a line for each thing whose part is missing from it."""

    usd: Range
    device_hours: float
    unknown: tuple[str, ...] = ()
    unknown_hours: tuple[str, ...] = ()

    def usd_for(self, gain: float | None) -> Range | None:
        """USD for each +0.01 of `gain`, a difference of shares; None where nothing was gained."""
        if gain is None or gain <= 0:
            return None
        return Range(low=self.usd.low * HUNDREDTH / gain, high=self.usd.high * HUNDREDTH / gain)

    def hours_for(self, gain: float | None) -> float | None:
        return None if gain is None or gain <= 0 else self.device_hours * HUNDREDTH / gain

    def __str__(self) -> str:
        return f"{'≥ ' if self.unknown else ''}{self.usd} USD, {self.hours} device hours"

    @property
    def hours(self) -> str:
        return f"{'≥ ' if self.unknown_hours else ''}{self.device_hours:,.2f}"


def total(lines: tuple[CostLine, ...]) -> CostTotal:
    """The bill of these lines. The same reason is said once for all lines of a name."""
    prices = [line.usd for line in lines if line.usd is not None]
    unknown = dict.fromkeys(f"{line.name}: {line.why}" for line in lines if line.usd is None)
    hours = dict.fromkeys(f"{line.name}: {line.why_hours}" for line in lines if line.device_hours is None)
    return CostTotal(
        usd=Range(low=sum(each.low for each in prices), high=sum(each.high for each in prices)),
        device_hours=sum(line.device_hours or 0.0 for line in lines),
        unknown=tuple(unknown),
        unknown_hours=tuple(hours),
    )


class SuiteQuality(Record):
    suite: str
    champion: ConfidenceInterval
    candidate: ConfidenceInterval
    difference: ConfidenceInterval


class IterationView(Record):
    iteration: str
    number: int | None = None
    """Champions before it; None where its `traces` record is gone."""
    begun_at: float = 0.0
    state: State
    stage: str = ""
    """The first stage without a record, of an iteration in progress."""
    step: int | None = None
    """The optimiser step that a training in progress has reached."""
    detail: str = ""
    verdict: str = ""
    seen: int | None = None
    """Rows of the source; a count or share of a stage that has not ended is None."""
    admitted: int | None = None
    counted: int | None = None
    """Admitted rows that count for the champion (`traces.attribution`): the dataset."""
    labelled: int | None = None
    coverage: float | None = None
    trainable: int | None = None
    """Labelled rows that may be trained on: agreed to, and asked by no suite."""
    method: str = ""
    goodput: float | None = None
    """Share of the training's time that went into steps of the final weights; None where no time is on record."""
    training_s: float = 0.0
    preemptions: int | None = None
    """None where no training has ended."""
    lost_steps: int = 0
    quality: SuiteQuality | None = None
    version: int | None = None
    promoted_at: float | None = None
    trace_to_promotion_s: float | None = None
    """From the end of the newest day of its traces; 0 where it was promoted on that day."""
    costs: tuple[CostLine, ...] = ()
    stages: tuple[tuple[str, str], ...] = ()
    """Each stage that has ended, and what came out in a sentence."""
    problems: tuple[str, ...] = ()
    """Records that cannot be read."""

    @property
    def kept(self) -> float | None:
        return self.admitted / self.seen if self.seen and self.admitted is not None else None

    @property
    def gain(self) -> float | None:
        return self.quality.difference.value if self.quality is not None else None

    @property
    def cost(self) -> CostTotal:
        return total(self.costs)


class Kpi(Record):
    """All iterations of one model under one data root, the oldest first."""

    model: str
    champion_version: int = 0
    """0 is the recipe's base model."""
    champion_iteration: str = ""
    champion_since: float | None = None
    champion_quality: ConfidenceInterval | None = None
    """On the target suite, as the evaluation that it passed measured it; of the base model as the newest one did."""
    suite: str = ""
    iterations: tuple[IterationView, ...] = ()
    ended: dict[str, int] = {}  # noqa: RUF012 (a pydantic field: copied for each instance)
    """Iterations by state."""
    gain: float | None = None
    """Sum of the differences of the promoted candidates, each to the champion that it replaced; None without one."""
    goodput: float | None = None
    """Over all trainings, by their time."""
    preemptions: int = 0
    lost_steps: int = 0
    trace_to_promotion_s: float | None = None
    """Median of the promoted iterations."""
    problems: tuple[str, ...] = ()

    @property
    def cost(self) -> CostTotal:
        return total(tuple(line for each in self.iterations for line in each.costs))
