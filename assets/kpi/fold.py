"""What iterations add up to: pure functions of their records, and one that reads those of a data root.

The rules. The champion's quality is that of the candidate that was promoted, on the target suite of the gate that it
passed. The gain of a deployment is the sum of the paired differences of its promoted candidates, each to the champion
that it replaced; so a suite that was drawn anew in between does not spoil it. What each +0.01 has cost is the bill of
all iterations, refused ones included, over that gain.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from statistics import median
from types import MappingProxyType
from typing import NamedTuple

from assets.kpi.costs import PriceList, RolloutCost, cost_lines, price_list
from assets.kpi.ledgers import IterationLedgers, iteration_ids, read_ledgers
from assets.kpi.records import DataFigures, IterationKpi, Kpi, State, SuiteQuality, TrainingFigures
from evals.measurements import ConfidenceInterval, Difference, EvalReport
from pipeline.core.storage import Store
from pipeline.recipe import Recipe
from pipeline.rewards.findings import JudgeSpending, spent
from pipeline.rollout.fold import fold
from pipeline.rollout.record import Phase, RolloutEvent, RolloutState, read_events
from pipeline.traces.records import UNKNOWN_DAY

ENDED: dict[Phase, State] = {
    Phase.PROMOTED: "promoted",
    Phase.ROLLED_BACK: "rolled back",
    Phase.ABORTED: "aborted",
    Phase.SUPERSEDED: "superseded",
}


class RolloutFigures(NamedTuple):
    """What the log says of the rollout of one iteration's candidate."""

    state: State
    reason: str
    version: int
    promoted_at: float | None
    cost: RolloutCost


class RolloutLog(NamedTuple):
    """All rollouts of a model, and by rollout what its judges were paid for grades of live answers."""

    events: Sequence[RolloutEvent]
    grades: Mapping[str, JudgeSpending] = MappingProxyType({})


def grades_paid(store: Store, events: Sequence[RolloutEvent]) -> dict[str, JudgeSpending]:
    """By rollout."""
    rollouts = {event.rollout for event in events}
    return {rollout: paid for rollout in rollouts if (paid := spent(store, [rollout], rollout, "judge")).tokens}


def read_kpi(store: Store, recipe: Recipe, newest: int | None = None) -> Kpi:
    """The key figures of the recipe's model under this root. `newest`: read so many iterations alone.

    Total: what cannot be read is said in `problems`, of an iteration or of the whole.
    """
    name, problems = recipe.base_model.name, list[str]()
    try:
        events = read_events(store, name)
    except (ValueError, OSError) as error:
        events = []
        problems.append(f"rollout: {str(error).splitlines()[0]}")
    try:
        grades = grades_paid(store, events)
    except OSError as error:
        grades = dict[str, JudgeSpending]()
        problems.append(f"rollout: {error}")
    ids = iteration_ids(store)
    all_ledgers = (read_ledgers(store, id) for id in (ids if newest is None else ids[-newest:]))
    ledgers = [each for each in all_ledgers if each.traces is None or each.traces.iteration.model_name == name]
    return kpi(name, ledgers, RolloutLog(events, grades), price_list(recipe), problems)


def kpi(
    model: str,
    ledgers: Iterable[IterationLedgers],
    log: RolloutLog,
    price: PriceList,
    problems: Sequence[str] = (),
) -> Kpi:
    """The fold. `ledgers`: of the model's iterations, the oldest first."""
    state, rollouts = fold(log.events), dict(rollout_figures(log))
    iterations = tuple(iteration_kpi(each, rollouts.get(each.id), price) for each in ledgers)
    promoted = [each for each in iterations if each.state == "promoted"]
    gains = [each.gain for each in promoted if each.gain is not None]
    trainings = [each.training for each in iterations if each.training and each.training.goodput is not None]
    seconds = sum(each.total_s for each in trainings)
    quality, suite = _champion_quality(state, iterations)
    waits = [each.trace_to_promotion_s for each in promoted if each.trace_to_promotion_s is not None]
    return Kpi(
        model=model,
        champion_version=state.past.champion.version if state.past.champion else 0,
        champion_iteration=state.past.champion.iteration if state.past.champion else "",
        champion_since=state.past.champion_since if state.past.champion else None,
        champion_quality=quality,
        suite=suite,
        iterations=iterations,
        ended=dict(Counter(each.state for each in iterations)),
        gain=sum(gains) if gains else None,
        goodput=sum((each.goodput or 0.0) * each.total_s for each in trainings) / seconds if seconds else None,
        preemptions=sum(each.training.preemptions for each in iterations if each.training),
        lost_steps=sum(each.training.lost_steps for each in iterations if each.training),
        trace_to_promotion_s=median(waits) if waits else None,
        problems=tuple(problems),
    )


def rollout_figures(log: RolloutLog) -> Iterator[tuple[str, RolloutFigures]]:
    """By the iteration that the candidate came out of; of several rollouts of one, the last."""
    final = fold(log.events)
    by_rollout: dict[str, list[RolloutEvent]] = {}
    for event in log.events:
        by_rollout.setdefault(event.rollout, []).append(event)
    for rollout, of_one in by_rollout.items():
        proposal = of_one[0].proposal
        if proposal is None:  # a log that lost its beginning is refused before this
            continue
        promoted = [event.at for event in of_one if event.phase is Phase.PROMOTED]
        state = ENDED.get(final.past.finished.get(rollout, Phase.IDLE), "in rollout")
        reasons = [event.reason for event in of_one if event.reason]
        figures = RolloutFigures(
            state,
            reasons[-1] if reasons else "",
            proposal.version.version,
            promoted[0] if promoted else None,
            _cost(of_one, log.grades.get(rollout, JudgeSpending())),
        )
        yield proposal.version.iteration, figures


def _cost(of_one: Sequence[RolloutEvent], grades: JudgeSpending) -> RolloutCost:
    """`of_one`: the events of one rollout, in order."""
    ended = [event.at for event in of_one if event.phase in ENDED]
    held_s = max(0.0, (ended[0] if ended else of_one[-1].at) - of_one[0].at)
    watched_s = sum(event.look.window_end - event.look.window_start for event in of_one if event.look is not None)
    return RolloutCost(held_s / 3600, watched_s / 3600, grades)


def iteration_kpi(of: IterationLedgers, rollout: RolloutFigures | None, price: PriceList) -> IterationKpi:
    """One iteration, whatever of it is there."""
    state, detail = _ending(of, rollout)
    data = _data(of)
    promoted_at = rollout.promoted_at if rollout else None
    return IterationKpi(
        iteration=of.id,
        number=of.traces.iteration.number if of.traces else None,
        begun_at=of.begun_at,
        state=state,
        stage=(of.missing[0] if of.missing else "canary") if state in ("in progress", "unfinished") else "",
        step=of.step if state == "in progress" and of.trained is None else None,
        detail=detail,
        verdict=str(of.verdict.verdict) if of.verdict else "",
        data=data,
        method=of.plan.decision.method if of.plan else "",
        training=_training(of),
        quality=suite_quality(of.report) if of.report else None,
        version=of.version.version if of.version else rollout.version if rollout else None,
        promoted_at=promoted_at,
        trace_to_promotion_s=_waited(data.last_day, promoted_at),
        costs=cost_lines(of, price, rollout.cost if rollout else None),
        problems=of.problems,
    )


def suite_quality(report: EvalReport) -> SuiteQuality | None:
    """Both models on the report's target; None where nothing was compared."""
    measured = report.target()
    if (compared := measured.comparison) is None:
        return None
    return SuiteQuality(
        suite=measured.suite,
        champion=compared.champion,
        candidate=compared.candidate,
        difference=_interval(compared.difference),
    )


def _interval(difference: Difference) -> ConfidenceInterval:
    return ConfidenceInterval(value=difference.value, low=difference.low, high=difference.high)


def _ending(of: IterationLedgers, rollout: RolloutFigures | None) -> tuple[State, str]:
    """The log of rollouts knows more than the iteration's own last word, which is older."""
    if rollout is not None:
        return rollout.state, rollout.reason
    if of.outcome is not None:
        return ("in rollout" if of.outcome.ending == "rollout" else of.outcome.ending), of.outcome.detail
    if of.problems or of.traces is None:
        return "unreadable", "; ".join(of.problems) or "its traces record is gone"
    return ("in progress", "") if of.is_latest else ("unfinished", "a newer iteration was begun")


def _data(of: IterationLedgers) -> DataFigures:
    days = [day.day for day in of.traces.days if day.day != UNKNOWN_DAY and day.admitted] if of.traces else []
    return DataFigures(
        first_day=min(days, default=""),
        last_day=max(days, default=""),
        seen=of.traces.seen if of.traces else None,
        admitted=of.traces.admitted if of.traces else None,
        rejected={str(reason): count for reason, count in of.traces.rejected.items()} if of.traces else {},
        counted=of.traces.iteration.dataset.rows if of.traces else None,
        labelled=of.labels.labelled if of.labels else None,
        coverage=of.labels.coverage if of.labels else None,
        abstained=of.labels.unlabelled if of.labels else {},
        trainable=of.trainable,
    )


def _training(of: IterationLedgers) -> TrainingFigures | None:
    if of.trained is None:
        return None
    goodput = of.trained.goodput
    return TrainingFigures(
        method=of.plan.decision.method if of.plan else "",
        steps=of.trained.checkpoint.step,
        attempts=of.trained.attempts,
        goodput=goodput.share if goodput.total_s > 0 else None,
        total_s=goodput.total_s,
        preemptions=len(of.trained.preemptions),
        lost_steps=sum(each.lost_steps for each in of.trained.preemptions),
        health=of.trained.health.verdict,
    )


def _waited(last_day: str, promoted_at: float | None) -> float | None:
    """Seconds from the end of that day (UTC) to the promotion."""
    if promoted_at is None or not last_day:
        return None
    try:
        end = datetime.fromisoformat(last_day).replace(tzinfo=UTC) + timedelta(days=1)
    except ValueError:  # a source may name its days otherwise
        return None
    return max(0.0, promoted_at - end.timestamp())


def _champion_quality(state: RolloutState, iterations: Sequence[IterationKpi]) -> tuple[ConfidenceInterval | None, str]:
    """Of the champion on record, and the suite; of the base model as the newest comparison measured it."""
    measured = [(each.iteration, each.quality) for each in iterations if each.quality is not None]
    if state.past.champion is None:
        return (measured[-1][1].champion, measured[-1][1].suite) if measured else (None, "")
    for iteration, quality in measured:
        if iteration == state.past.champion.iteration:
            return quality.candidate, quality.suite
    return None, ""
