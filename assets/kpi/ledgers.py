"""One iteration's files, read for people: whatever is there, in whatever state a kill, a clean-up or a run left it.

A record that is missing is None, one that cannot be read is None with a line that says so. Refuses to write, to lock
and to take part in the loop: a stage reads its own records, strictly (assets/records.py).
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from assets.outcome import IterationBeginning, IterationOutcome, placed
from assets.records import (
    CHECKPOINT,
    LABELS,
    PLAN,
    PREFERENCES,
    RECORDS,
    REPORT,
    REWARD_MODEL,
    SAMPLES,
    TRACES,
    VERDICT,
    VERSION,
    StageRecord,
)
from evals.gate import GateVerdict
from evals.judgements import spent_on
from evals.measurements import EvalReport
from k8s.attempts import GangAttempts
from k8s.ledger import LaunchAttempt, Ledger
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
    """When its first stage published it; of a root without such a record, when the oldest of its files was written."""
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

    @property
    def trainable(self) -> int | None:
        """Labelled rows that are left once consent and the suites' own items are taken out."""
        if self.preferences is None:
            return None
        return self.preferences.evidence.labelled


def iteration_ids(store: Store) -> list[str]:
    """Ids of the iterations under the root, the oldest first."""
    folders = [path for path in store.path(layout.ITERATIONS).glob("[!.]*") if path.is_dir()]
    return [path.name for path in sorted(folders, key=lambda path: (*_begun(store, path), path.name))]


def read_ledgers(store: Store, id: str) -> IterationLedgers:
    """Whatever there is of an iteration. Total: a damaged file is a line in `problems`."""
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

    journal = store.path(layout.iteration(id, layout.JOURNAL))
    events = tried(layout.JOURNAL, lambda: tuple(read_journal(journal)), ())
    nothing: tuple[LaunchAttempt, ...] = ()
    latest = tried(layout.LATEST, lambda: store.read(layout.LATEST, Iteration), None)
    return IterationLedgers(
        id=id,
        begun_at=_begun(store, store.path(layout.iteration(id)))[1],
        traces=stage(TRACES),
        labels=stage(LABELS),
        reward_model=stage(REWARD_MODEL),
        samples=stage(SAMPLES),
        preferences=stage(PREFERENCES),
        plan=stage(PLAN),
        trained=stage(CHECKPOINT),
        account=other(layout.LEDGER, Ledger),
        report=stage(REPORT),
        verdict=stage(VERDICT),
        version=stage(VERSION),
        outcome=other(layout.OUTCOME, IterationOutcome),
        evaluation_attempts=tried(
            "attempts", lambda: tuple(GangAttempts(store, id, layout.EVAL_ATTEMPTS).all()), nothing
        ),
        judged=tried("judgements", lambda: spent_on(store, id), JudgeSpending()),
        step=events[-1].step if events else None,
        missing=tuple(
            asset for asset, each in RECORDS.items() if not store.path(layout.iteration(id, each.name)).is_file()
        ),
        is_latest=latest is None or latest.id == id,
        problems=tuple(problems),
    )


def _begun(store: Store, folder: Path) -> tuple[int, float]:
    """Its place and time. Without a record: an erasure writes some records anew, so the oldest file counts; 0 for a
    folder that is gone or empty."""
    try:
        if (begun := placed(store, layout.iteration(folder.name, layout.BEGUN), IterationBeginning)) is not None:
            return begun.place, begun.at
        return -1, min((path.stat().st_mtime for path in folder.glob("*.json")), default=folder.stat().st_mtime)
    except (OSError, ValueError):  # removed meanwhile, or damaged
        return -1, 0.0
