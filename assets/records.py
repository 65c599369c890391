"""The record that each asset leaves in an iteration: name, type, and what to run where it is missing. Steps find the
records of others there: in the same run, in a re-execution and in a run of one stage."""

import json
import shlex
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from assets.environment import ITERATION_TAG
from assets.naming import launch_command
from assets.outcome import IterationOutcome
from evals.gate import GateVerdict
from evals.measurements import EvalReport
from pipeline.core import layout
from pipeline.core.iteration import Iteration
from pipeline.core.storage import Record, Store
from pipeline.recipe import Recipe
from pipeline.rewards.records import RewardLabels
from pipeline.rewards.reward_model.records import RewardModelReport
from pipeline.rollout.record import ModelVersion
from pipeline.selection.preferences import PreferenceDataset
from pipeline.selection.samples.records import FreshSamples
from pipeline.traces.records import GovernedTraces
from pipeline.training.plan import TrainingPlan
from pipeline.training.result import TrainingResult

R = TypeVar("R", bound=Record)


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


def launch_from(store: Store, iteration: str, asset: str) -> str:
    """The command that makes an asset of an iteration and all below it. The newest iteration needs no name."""
    recipe = store.read(layout.iteration(iteration, layout.RECIPE), Recipe)
    if asset == "traces":
        return shlex.join(launch_command(recipe))
    newest = store.read(layout.LATEST, Iteration)
    command = launch_command(recipe, stage=f"{asset}*")
    if newest is None or newest.id != iteration:
        command += ["--tags", json.dumps({ITERATION_TAG: iteration})]
    return shlex.join(command)


def _missing(store: Store, iteration: str, asset: str) -> str:
    """Why the record is not there, and the command that makes it: from the first stage that has left none."""
    ended = store.read(layout.iteration(iteration, layout.OUTCOME), IterationOutcome)
    if ended is not None:
        return (
            f"Iteration {iteration} has no {asset}: it ended before it ({ended.ending}: {ended.detail}). To have it "
            f"anew from a stage: pt retry STAGE --iteration {iteration}"
        )
    first = next(a for a, each in RECORDS.items() if not store.path(layout.iteration(iteration, each.name)).is_file())
    return (
        f"Iteration {iteration} has no {asset} yet. Launch the job from the first stage that is missing: "
        f"{launch_from(store, iteration, first)}"
    )
