"""What iterations add up to. The deployment's gain is the sum of the promoted candidates' paired differences on the
gate's target suite; what +0.01 costs is the bill of all iterations, refused ones included, over that gain."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from statistics import median
from types import MappingProxyType
from typing import NamedTuple

from assets.kpi.costs import PriceList, RolloutCost, cost_lines, price_list
from assets.kpi.ledgers import IterationLedgers, iteration_ids, read_ledgers
from assets.kpi.records import IterationView, Kpi, State, SuiteQuality
from assets.kpi.texts import stage_sentences
from evals.measurements import ConfidenceInterval, EvalReport
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


def read_kpi(store: Store, recipe: Recipe, newest: int | None = None) -> Kpi:
    """The key figures of the recipe's model under this root. `newest`: read so many iterations alone.

    Raises nothing: what cannot be read is said in `problems`, of an iteration or of the whole.
    """
    name, problems, log = recipe.base_model.name, list[str](), RolloutLog(())
    try:
        log = RolloutLog(read_events(store, name))
        rollouts = {event.rollout for event in log.events}
        log = log._replace(grades={rollout: spent(store, [rollout], rollout, "judge") for rollout in rollouts})
    except (ValueError, OSError) as error:
        problems.append(f"rollout: {str(error).splitlines()[0]}")
    ids = iteration_ids(store)
    all_ledgers = (read_ledgers(store, id) for id in (ids if newest is None else ids[-newest:]))
    ledgers = [each for each in all_ledgers if each.traces is None or each.traces.iteration.model_name == name]
    return kpi(name, ledgers, log, price_list(recipe), problems)


def kpi(
    model: str, ledgers: Iterable[IterationLedgers], log: RolloutLog, price: PriceList, problems: Sequence[str] = ()
) -> Kpi:
    """`ledgers`: of the model's iterations, the oldest first."""
    state, rollouts = fold(log.events), dict(_rollouts(log))
    iterations = tuple(_view(each, rollouts.get(each.id), price) for each in ledgers)
    promoted = [each for each in iterations if each.state == "promoted"]
    gains = [each.gain for each in promoted if each.gain is not None]
    timed = [each for each in iterations if each.goodput is not None]
    seconds = sum(each.training_s for each in timed)
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
        goodput=sum((each.goodput or 0.0) * each.training_s for each in timed) / seconds if seconds else None,
        preemptions=sum(each.preemptions or 0 for each in iterations),
        lost_steps=sum(each.lost_steps for each in iterations),
        trace_to_promotion_s=median(waits) if waits else None,
        problems=tuple(problems),
    )


def _rollouts(log: RolloutLog) -> Iterator[tuple[str, RolloutFigures]]:
    """By the iteration that the candidate came out of; of several rollouts of one, the last."""
    final = fold(log.events)
    by_rollout: dict[str, list[RolloutEvent]] = {}
    for event in log.events:
        by_rollout.setdefault(event.rollout, []).append(event)
    for rollout, of_one in by_rollout.items():
        first, proposal = of_one[0], of_one[0].proposal
        assert proposal is not None, "a log that lost its beginning is refused before this"
        ended = [event.at for event in of_one if event.phase in ENDED]
        looks = [event.look for event in of_one if event.look is not None]
        held_s = max(0.0, (ended[0] if ended else of_one[-1].at) - first.at)
        watched_s = sum(look.window_end - look.window_start for look in looks)
        yield (
            proposal.version.iteration,
            RolloutFigures(
                ENDED.get(final.past.finished.get(rollout, Phase.IDLE), "in rollout"),
                next((event.reason for event in reversed(of_one) if event.reason), ""),
                proposal.version.version,
                next((event.at for event in of_one if event.phase is Phase.PROMOTED), None),
                RolloutCost(held_s / 3600, watched_s / 3600, log.grades.get(rollout, JudgeSpending())),
            ),
        )


def _view(of: IterationLedgers, rollout: RolloutFigures | None, price: PriceList) -> IterationView:
    state, detail = _ending(of, rollout)
    traces, labels, goodput = of.traces, of.labels, of.trained.goodput if of.trained else None
    days = [day.day for day in traces.days if day.day != UNKNOWN_DAY and day.admitted] if traces else []
    promoted_at = rollout.promoted_at if rollout else None
    return IterationView(
        iteration=of.id,
        number=traces.iteration.number if traces else None,
        begun_at=of.begun_at,
        state=state,
        stage=(of.missing[0] if of.missing else "canary") if state in ("in progress", "unfinished") else "",
        step=of.step if state == "in progress" and of.trained is None else None,
        detail=detail,
        verdict=str(of.verdict.verdict) if of.verdict else "",
        seen=traces.seen if traces else None,
        admitted=traces.admitted if traces else None,
        counted=traces.iteration.dataset.rows if traces else None,
        labelled=labels.labelled if labels else None,
        coverage=labels.coverage if labels else None,
        trainable=of.preferences.evidence.labelled if of.preferences else None,
        method=of.plan.decision.method if of.plan else "",
        goodput=goodput.share if goodput and goodput.total_s > 0 else None,
        training_s=goodput.total_s if goodput else 0.0,
        preemptions=len(of.trained.preemptions) if of.trained else None,
        lost_steps=sum(each.lost_steps for each in of.trained.preemptions) if of.trained else 0,
        quality=suite_quality(of.report) if of.report else None,
        version=of.version.version if of.version else rollout.version if rollout else None,
        promoted_at=promoted_at,
        trace_to_promotion_s=_waited(max(days, default=""), promoted_at),
        costs=tuple(cost_lines(of, price, rollout.cost if rollout else None)),
        stages=tuple(stage_sentences(of)),
        problems=of.problems,
    )


def suite_quality(report: EvalReport) -> SuiteQuality | None:
    """Both models on the report's target; None where nothing was compared."""
    measured = report.target()
    if (compared := measured.comparison) is None:
        return None
    gain = compared.difference
    return SuiteQuality(
        suite=measured.suite,
        champion=compared.champion,
        candidate=compared.candidate,
        difference=ConfidenceInterval(value=gain.value, low=gain.low, high=gain.high),
    )


def _ending(of: IterationLedgers, rollout: RolloutFigures | None) -> tuple[State, str]:
    """The log of rollouts is newer than the iteration's own last word."""
    if rollout is not None:
        return rollout.state, rollout.reason
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


def _champion_quality(
    state: RolloutState, iterations: Sequence[IterationView]
) -> tuple[ConfidenceInterval | None, str]:
    """Of the champion on record, and the suite; of the base model as the newest comparison measured it."""
    measured = {each.iteration: each.quality for each in iterations if each.quality is not None}
    if state.past.champion is None:
        newest = next(reversed(measured.values()), None)
        return (newest.champion, newest.suite) if newest is not None else (None, "")
    own = measured.get(state.past.champion.iteration)
    return (own.candidate, own.suite) if own is not None else (None, "")
