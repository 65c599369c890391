"""What iterations gave, what they cost and how they ended: the read model of status, page and Dagster. Shares are in
[0, 1], times in seconds since the epoch; a figure that no record has is None, not 0.

The deployment's gain is the sum of the promoted candidates' paired differences on the gate's target suite; what +0.01
costs is the bill of all iterations, refused ones included, over that gain."""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Literal, NamedTuple

from assets.costs import Bill, CostLine, cost_lines
from assets.records import IterationRecords, begun_iterations
from assets.sentences import stage_sentences
from evals.records import ConfidenceInterval, EvalReport
from pipeline.core.storage import Record, Store
from pipeline.recipe import Recipe
from pipeline.recipe.sources import DemoSource
from pipeline.rollout.fold import RolloutLog, read_log
from pipeline.rollout.record import Phase
from pipeline.traces.records import UNKNOWN_DAY
from pipeline.views.iteration import IterationBar
from pipeline.views.rollout import RolloutFigures, rollout_figures, spell

State = Literal[
    "in progress", "unfinished", "not trained", "stopped", "refused", "held", "registered", "in rollout", "promoted",
    "rolled back", "aborted", "superseded", "unreadable",
]  # fmt: skip
"""`unfinished`: a newer iteration was begun before it ended. `rolled back`: also after a promotion. `unreadable`: its
records are damaged or gone."""
HEAD = ("iteration", "ended", "kept", "labels", "method", "champion", "candidate", "points", "gate", "USD", "device h")
ENDED: dict[Phase, State] = {
    Phase.PROMOTED: "promoted",
    Phase.ROLLED_BACK: "rolled back",
    Phase.ABORTED: "aborted",
    Phase.SUPERSEDED: "superseded",
}


class SuiteQuality(Record):
    suite: str
    champion: ConfidenceInterval
    candidate: ConfidenceInterval
    difference: ConfidenceInterval


class IterationView(Record):
    """A count or share of a stage that has not ended is None."""

    iteration: str
    number: int = 0
    """Its place among the model's iterations, from 1 on; 0 is unknown."""
    begun_at: float = 0.0
    state: State
    stage: str = ""
    """The first stage without a record, of an iteration in progress."""
    step: int | None = None
    """The optimiser step that a training in progress has reached."""
    detail: str = ""
    verdict: str = ""
    seen: int | None = None
    admitted: int | None = None
    """Of the rows of the source that were seen."""
    coverage: float | None = None
    method: str = ""
    quality: SuiteQuality | None = None
    version: int | None = None
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
    def bill(self) -> Bill:
        return Bill(self.costs)

    @property
    def title(self) -> str:
        return f"{self.number} ({self.iteration})" if self.number else self.iteration

    @property
    def row(self) -> tuple[str, ...]:
        """Its cells below HEAD."""
        kept, labels = ("" if share is None else f"{share:.0%}" for share in (self.kept, self.coverage))
        quality, spent = ("", "", ""), (self.bill.dollars, self.bill.hours) if self.costs else ("", "")
        if (each := self.quality) is not None:
            gain = f"{100 * each.difference.value:+.1f}"
            quality = (f"{each.champion.value:.1%}", f"{each.candidate.value:.1%}", gain)
        return (self.title, self.state, kept, labels, self.method, *quality, self.verdict, *spent)


class KeyFigure(NamedTuple):
    name: str
    value: str
    note: str = ""


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
    gain: float | None = None
    """Sum of the differences of the promoted candidates, each to the champion that it replaced; None without one."""
    trace_to_promotion_s: float | None = None
    """Median of the promoted iterations."""
    problems: tuple[str, ...] = ()

    @property
    def ended(self) -> Counter[str]:
        """Iterations by state."""
        return Counter(each.state for each in self.iterations)

    @property
    def bill(self) -> Bill:
        return Bill([line for each in self.iterations for line in each.costs])

    def bars(self) -> list[IterationBar]:
        bars: list[IterationBar] = []
        for each in self.iterations:
            arms = (each.quality.champion, each.quality.candidate) if each.quality else (None, None)
            champion, candidate = (None if arm is None else (arm.value, arm.low, arm.high) for arm in arms)
            bars.append(IterationBar(str(each.number), champion, candidate, each.bill.device_hours))
        return bars

    def sums(self) -> Iterator[KeyFigure]:
        """What all iterations add up to."""
        bill, gain = self.bill, self.gain
        ended = ", ".join(f"{count} {state}" for state, count in sorted(self.ended.items()))
        yield KeyFigure("iterations", f"{len(self.iterations)}", ended)
        yield KeyFigure("cost of all", f"{bill.dollars} USD", f"{bill.hours} device hours")
        if gain is not None:
            yield KeyFigure("gain", f"{100 * gain:+.1f} points", "of right answers, by the promoted ones together")
        if (usd := bill.for_hundredth(gain)) is not None:
            yield KeyFigure(
                "for each +0.01", f"{'≥ ' if bill.unknown else ''}{usd} USD", "the cost of all over the gain"
            )
        if (waited := self.trace_to_promotion_s) is not None:
            note = "from the newest trace, median of the promoted"
            yield KeyFigure("until promotion", spell(waited) if waited else "under a day", note)


def read_kpi(store: Store, recipe: Recipe) -> Kpi:
    """The key figures of the recipe's model under this root.

    Raises nothing: what cannot be read is said in `problems`, of an iteration or of the whole.
    """
    model, problems, log = recipe.base_model.name, tuple[str, ...](), RolloutLog()
    try:
        log = read_log(store, model)
    except (ValueError, OSError) as error:
        problems = (f"rollout: {str(error).splitlines()[0]}",)
    rollouts, past = dict(rollout_figures(store, log)), log.state.past
    every = [IterationRecords(store, id) for id in begun_iterations(store)]
    own = [each for each in every if each.traces is None or each.traces.iteration.model_name == model]
    iterations = tuple(_view(n, each, rollouts.get(each.id), recipe) for n, each in enumerate(own, start=1))
    promoted = [each for each in iterations if each.state == "promoted"]
    gains = [each.quality.difference.value for each in promoted if each.quality is not None]
    waits = [each.trace_to_promotion_s for each in promoted if each.trace_to_promotion_s is not None]
    maker = past.champion.iteration if past.champion else ""
    measured = [each for each in iterations if each.quality is not None and (not maker or each.iteration == maker)]
    quality = measured[-1].quality if measured else None
    return Kpi(
        model=model,
        champion_version=past.champion.version if past.champion else 0,
        champion_iteration=maker,
        champion_since=past.champion_since if past.champion else None,
        champion_quality=quality and (quality.candidate if maker else quality.champion),
        suite=quality.suite if quality else "",
        iterations=iterations,
        gain=sum(gains) if gains else None,
        trace_to_promotion_s=median(waits) if waits else None,
        problems=problems,
    )


def _view(number: int, of: IterationRecords, rollout: RolloutFigures | None, recipe: Recipe) -> IterationView:
    state, detail = _ending(of, rollout)
    traces, labels, missing = of.traces, of.labels, of.missing
    known = () if traces is None or isinstance(recipe.traces.source, DemoSource) else traces.days  # which are no dates
    last_day = max((day.day for day in known if day.day != UNKNOWN_DAY and day.admitted), default="")
    return IterationView(
        iteration=of.id,
        number=number,
        begun_at=of.begun_at,
        state=state,
        stage=(missing[0] if missing else "canary") if state in ("in progress", "unfinished") else "",
        step=of.step if state == "in progress" and of.trained is None else None,
        detail=detail,
        verdict=str(of.verdict.verdict) if of.verdict else "",
        seen=traces.seen if traces else None,
        admitted=traces.admitted if traces else None,
        coverage=labels.coverage if labels else None,
        method=of.plan.decision.method if of.plan else "",
        quality=suite_quality(of.report) if of.report else None,
        version=of.version.version if of.version else rollout.version if rollout else None,
        trace_to_promotion_s=_waited(last_day, rollout.promoted_at if rollout else None),
        costs=tuple(cost_lines(of, recipe, rollout)),
        stages=tuple(stage_sentences(of)),
        problems=tuple(of.problems),
    )


def suite_quality(report: EvalReport) -> SuiteQuality | None:
    """Both models on the report's target; None where nothing was compared."""
    measured = report.target()
    if (compared := measured.comparison) is None:
        return None
    gain, arms = compared.difference, {"champion": compared.champion, "candidate": compared.candidate}
    difference = ConfidenceInterval(value=gain.value, low=gain.low, high=gain.high)
    return SuiteQuality(suite=measured.suite, difference=difference, **arms)


def _ending(of: IterationRecords, rollout: RolloutFigures | None) -> tuple[State, str]:
    """The log of rollouts is newer than the iteration's own last word."""
    if rollout is not None:
        return ENDED.get(rollout.phase, "in rollout"), rollout.reason
    if of.outcome is not None:
        return ("in rollout" if of.outcome.ending == "rollout" else of.outcome.ending), of.outcome.detail
    if of.problems or of.traces is None:
        return "unreadable", "; ".join(of.problems) or "its traces record is gone"
    return ("in progress", "") if of.is_latest else ("unfinished", "a newer iteration was begun")


def _waited(last_day: str, promoted_at: float | None) -> float | None:
    """Seconds from the end of that day (UTC) to the promotion."""
    if promoted_at is None or not last_day:
        return None
    try:
        end = datetime.fromisoformat(last_day).replace(tzinfo=UTC) + timedelta(days=1)
    except ValueError:  # a source may name its days otherwise
        return None
    return max(0.0, promoted_at - end.timestamp())
