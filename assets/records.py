"""The records of an iteration: how it began and ended, and what each asset leaves, with what to run where that is
missing. Steps find the records of others there: in the same run, in a re-execution and in a run of one stage."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from assets.naming import launch_command
from evals.gate import GateVerdict
from evals.judged import spent_on
from evals.records import EvalReport
from k8s.attempts import GangAttempts, LaunchAttempt, Ledger
from pipeline.core import layout
from pipeline.core.iteration import Iteration
from pipeline.core.storage import ModelRef, Record, Store
from pipeline.recipe import Recipe
from pipeline.rewards.findings import JudgeSpending
from pipeline.rewards.records import RewardLabels
from pipeline.rewards.reward_model.records import RewardModelReport
from pipeline.rollout.record import ModelVersion
from pipeline.selection.draw import FreshSamples
from pipeline.selection.preferences import PreferenceDataset
from pipeline.traces.records import GovernedTraces
from pipeline.training.journal import read_journal
from pipeline.training.plan import TrainingPlan
from pipeline.training.result import TrainingResult

Ending = Literal["not trained", "stopped", "refused", "held", "registered", "rollout"]
"""`stopped`: by the training itself. `held`: the candidate passed and waits for a person. `registered`: it passed, and
the deployment has no router to roll it out by."""
R = TypeVar("R", bound=Record)
T = TypeVar("T")


class IterationBeginning(Record):
    """That an iteration was begun, in seconds since 1970: a copy or a backup need not keep the times of files."""

    at: float


class IterationOutcome(IterationBeginning):
    """How it ended, written last: after a crash the iteration goes on. `detail` says why."""

    ending: Ending
    detail: str


def begin(store: Store, iteration: Iteration) -> None:
    store.create(iteration.path(layout.BEGUN), IterationBeginning(at=time.time()))


def conclude(store: Store, iteration: Iteration, ending: Ending, detail: str) -> None:
    """Record the ending once; a second call changes nothing, but that a candidate that was held, or registered alone,
    may yet be rolled out."""
    ended, before = IterationOutcome(ending=ending, detail=detail, at=time.time()), outcome(store, iteration)
    may_change = ending == "rollout" and before is not None and before.ending in ("held", "registered")
    (store.write if may_change else store.create)(iteration.path(layout.OUTCOME), ended)


def outcome(store: Store, iteration: Iteration) -> IterationOutcome | None:
    return store.read(iteration.path(layout.OUTCOME), IterationOutcome)


@dataclass(frozen=True)
class StageRecord(Generic[R]):
    """What an asset leaves. `name`: of the file under `iterations/<id>/`."""

    asset: str
    name: str
    kind: type[R]

    def find(self, store: Store, iteration: str) -> R | None:
        """None when it has not been made."""
        return store.read(layout.iteration(iteration, self.name), self.kind)

    def read(self, store: Store, iteration: str) -> R:
        """Raises ValueError with what to run when it has not been made."""
        record = self.find(store, iteration)
        if record is None:
            raise ValueError(_missing(store, iteration, self.asset))
        return record


TRACES = StageRecord("traces", layout.GOVERNED, GovernedTraces)
LABELS = StageRecord("reward_labels", layout.LABELS, RewardLabels)
REWARD_MODEL = StageRecord("reward_model", layout.REWARD_MODEL, RewardModelReport)
SAMPLES = StageRecord("samples", layout.FRESH, FreshSamples)
PREFERENCES = StageRecord("preference_dataset", layout.PREFERENCES, PreferenceDataset)
PLAN = StageRecord("training_plan", layout.PLAN, TrainingPlan)
CHECKPOINT = StageRecord("policy_checkpoint", layout.RESULT, TrainingResult)
REPORT = StageRecord("eval_report", layout.EVAL_REPORT, EvalReport)
VERDICT = StageRecord("gate_verdict", layout.GATE_VERDICT, GateVerdict)
VERSION = StageRecord("model_version", layout.MODEL_VERSION, ModelVersion)

RECORDS: dict[str, StageRecord[Any]] = {
    each.asset: each
    for each in (TRACES, LABELS, REWARD_MODEL, SAMPLES, PREFERENCES, PLAN, CHECKPOINT, REPORT, VERDICT, VERSION)
}
"""In the order of a run. The last asset, `canary`, leaves the rollout's events instead."""


def goes_on(store: Store, promoted: ModelRef | None, recipe: Recipe) -> Iteration | None:
    """The newest iteration, where a launch goes on with it although newer traces may be there: its candidate is
    registered, or its training is planned, of the champion and the recipe of now; and it has not ended."""
    newest = store.read(layout.LATEST, Iteration)
    if newest is None or outcome(store, newest) is not None:
        return None
    base, champion = str(Path(recipe.base_model.uri).absolute()), newest.champion
    same = champion.digest == promoted.digest if promoted else champion.uri == base
    planned = same and newest.recipe_digest == recipe.digest() and PLAN.find(store, newest.id)
    return newest if planned or VERSION.find(store, newest.id) else None


def launch_from(store: Store, iteration: str, asset: str, prefix: str | None = None) -> str:
    """The command that makes an asset of an iteration and all below it. The newest iteration needs no name."""
    if asset == "traces":
        return launch_command(prefix=prefix)
    newest = store.read(layout.LATEST, Iteration)
    named = newest is None or newest.id != iteration
    return launch_command(stages=f"{asset}*", iteration=iteration if named else "", prefix=prefix)


def _missing(store: Store, iteration: str, asset: str) -> str:
    """Why the record is not there, and the command that makes it: from the first stage that has left none."""
    ended = store.read(layout.iteration(iteration, layout.OUTCOME), IterationOutcome)
    if ended is not None:
        return (
            f"Iteration {iteration} has no {asset}: it ended before it ({ended.ending}: {ended.detail}). To run a "
            f"stage of it again: pt retry STAGE --iteration {iteration}"
        )
    first = next(a for a, each in RECORDS.items() if not store.path(layout.iteration(iteration, each.name)).is_file())
    return (
        f"Iteration {iteration} has no {asset} yet. Launch the job from the first stage that is missing: "
        f"{launch_from(store, iteration, first)}"
    )


class IterationRecords:
    """The records of one iteration, read for people: a missing one is None, an unreadable one None with a line in
    `problems`."""

    def __init__(self, store: Store, id: str) -> None:
        self.id = id
        self.problems: list[str] = []
        self._store = store
        begun = self._other(layout.BEGUN, IterationBeginning)
        self.begun_at = begun.at if begun is not None else 0.0
        self.traces = self._stage(TRACES)
        self.labels = self._stage(LABELS)
        self.reward_model = self._stage(REWARD_MODEL)
        self.samples = self._stage(SAMPLES)
        self.preferences = self._stage(PREFERENCES)
        self.plan = self._stage(PLAN)
        self.trained = self._stage(CHECKPOINT)
        self.account = self._other(layout.LEDGER, Ledger)
        self.report = self._stage(REPORT)
        self.verdict = self._stage(VERDICT)
        self.version = self._stage(VERSION)
        self.outcome = self._other(layout.OUTCOME, IterationOutcome)
        attempts = GangAttempts(store, id, layout.EVAL_ATTEMPTS)
        self.evaluation_attempts: list[LaunchAttempt] = self._tried("attempts", lambda: list(attempts.all()), [])
        """Pods of its evaluation; none where it ran in its step."""
        self.judged = self._tried("judgements", lambda: spent_on(store, id), JudgeSpending())
        """What the judged suites' judges took."""
        journal = store.path(layout.iteration(id, layout.JOURNAL))
        events = self._tried(layout.JOURNAL, lambda: list(read_journal(journal)), [])
        self.step = events[-1].step if events else None
        """The last step in the training's journal."""
        latest = self._tried(layout.LATEST, lambda: store.read(layout.LATEST, Iteration), None)
        self.is_latest = latest is None or latest.id == id
        """Whether a launch goes on with it: no other iteration was begun after it."""

    @property
    def missing(self) -> list[str]:
        """Stages without a record, in the order of a run."""
        paths = {name: self._store.path(layout.iteration(self.id, each.name)) for name, each in RECORDS.items()}
        return [name for name, path in paths.items() if not path.is_file()]

    def _stage(self, each: StageRecord[R]) -> R | None:
        return self._tried(each.asset, lambda: each.find(self._store, self.id), None)

    def _other(self, name: str, kind: type[R]) -> R | None:
        return self._tried(name, lambda: self._store.read(layout.iteration(self.id, name), kind), None)

    def _tried(self, what: str, read: Callable[[], T], otherwise: T) -> T:
        try:
            return read()
        except (ValueError, OSError) as error:
            self.problems.append(f"{what}: {str(error).splitlines()[0]}")
            return otherwise


def begun_iterations(store: Store) -> dict[str, float]:
    """When each iteration was begun, by its id, the oldest first; 0 where that is not on record."""

    def begun_at(id: str) -> float:
        try:
            begun = store.read(layout.iteration(id, layout.BEGUN), IterationBeginning)
        except ValueError:
            return 0.0
        return 0.0 if begun is None else begun.at

    folders = [path.name for path in store.path(layout.ITERATIONS).glob("[!.]*") if path.is_dir()]
    return dict(sorted(((id, begun_at(id)) for id in folders), key=lambda each: (each[1], each[0])))
