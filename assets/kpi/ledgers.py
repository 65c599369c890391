"""One iteration's records, read for people: a missing one is None, an unreadable one None with a line in `problems`.
Stages read strictly, by assets/records.py."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from assets import records
from assets.outcome import IterationBeginning, IterationOutcome
from assets.records import RECORDS, StageRecord
from evals.gate import GateVerdict
from evals.judgements import spent_on
from evals.measurements import EvalReport
from k8s.attempts import GangAttempts, LaunchAttempt, Ledger
from pipeline.core import layout
from pipeline.core.iteration import Iteration
from pipeline.core.storage import Record, Store
from pipeline.rewards.findings import JudgeSpending
from pipeline.rewards.records import RewardLabels
from pipeline.rewards.reward_model.records import RewardModelReport
from pipeline.rollout.record import ModelVersion
from pipeline.selection.preferences import PreferenceDataset
from pipeline.selection.samples.records import FreshSamples
from pipeline.traces.records import GovernedTraces
from pipeline.training.journal import read_journal
from pipeline.training.plan import TrainingPlan
from pipeline.training.result import TrainingResult

R = TypeVar("R", bound=Record)
T = TypeVar("T")


@dataclass(frozen=True)
class IterationLedgers:
    """The records of one iteration that are there and readable."""

    id: str
    begun_at: float
    traces: GovernedTraces | None
    labels: RewardLabels | None
    reward_model: RewardModelReport | None
    samples: FreshSamples | None
    preferences: PreferenceDataset | None
    plan: TrainingPlan | None
    trained: TrainingResult | None
    account: Ledger | None
    report: EvalReport | None
    verdict: GateVerdict | None
    version: ModelVersion | None
    outcome: IterationOutcome | None
    evaluation_attempts: tuple[LaunchAttempt, ...]
    """Pods of its evaluation; none where it ran in its step."""
    judged: JudgeSpending
    """What the judged suites' judges took."""
    step: int | None
    """The last step in the training's journal."""
    missing: tuple[str, ...]
    """Stages without a record, in the order of a run."""
    is_latest: bool
    """Whether a launch goes on with it: no other iteration was begun after it."""
    problems: tuple[str, ...]


def iteration_ids(store: Store) -> list[str]:
    folders = [path.name for path in store.path(layout.ITERATIONS).glob("[!.]*") if path.is_dir()]
    return sorted(folders, key=lambda id: (*_begun(store, id), id))


def read_ledgers(store: Store, id: str) -> IterationLedgers:
    problems: list[str] = []

    def tried(what: str, read: Callable[[], T], otherwise: T) -> T:
        try:
            return read()
        except (ValueError, OSError) as error:
            problems.append(f"{what}: {str(error).splitlines()[0]}")
            return otherwise

    def stage(each: StageRecord[R]) -> R | None:
        return tried(each.asset, lambda: each.find(store, id), None)

    def other(name: str, kind: type[R]) -> R | None:
        return tried(name, lambda: store.read(layout.iteration(id, name), kind), None)

    def attempts() -> tuple[LaunchAttempt, ...]:
        return tuple(GangAttempts(store, id, layout.EVAL_ATTEMPTS).all())

    journal = store.path(layout.iteration(id, layout.JOURNAL))
    events = tried(layout.JOURNAL, lambda: tuple(read_journal(journal)), ())
    latest = tried(layout.LATEST, lambda: store.read(layout.LATEST, Iteration), None)
    return IterationLedgers(
        id=id,
        begun_at=tried(layout.BEGUN, lambda: _begun(store, id, damaged=False)[1], 0.0),
        traces=stage(records.TRACES),
        labels=stage(records.LABELS),
        reward_model=stage(records.REWARD_MODEL),
        samples=stage(records.SAMPLES),
        preferences=stage(records.PREFERENCES),
        plan=stage(records.PLAN),
        trained=stage(records.CHECKPOINT),
        account=other(layout.LEDGER, Ledger),
        report=stage(records.REPORT),
        verdict=stage(records.VERDICT),
        version=stage(records.VERSION),
        outcome=other(layout.OUTCOME, IterationOutcome),
        evaluation_attempts=tried("attempts", attempts, tuple[LaunchAttempt, ...]()),
        judged=tried("judgements", lambda: spent_on(store, id), JudgeSpending()),
        step=events[-1].step if events else None,
        missing=tuple(
            name for name, each in RECORDS.items() if not store.path(layout.iteration(id, each.name)).is_file()
        ),
        is_latest=latest is None or latest.id == id,
        problems=tuple(problems),
    )


def _begun(store: Store, id: str, damaged: bool = True) -> tuple[int, float]:
    """Place and time; -1 and 0 without a record, and with one that is damaged where that is allowed."""
    try:
        begun = store.read(layout.iteration(id, layout.BEGUN), IterationBeginning)
    except ValueError:
        if not damaged:
            raise
        begun = None
    return (-1, 0.0) if begun is None else (begun.place, begun.at)
