"""What the assets are given: the deployment (recipe, store, endpoints) and the records of the stages before them.

The only place that reads the environment. Records are not pickled between steps: every stage publishes its own under
the iteration, and `Records` finds it there again, in the same run, in a re-execution and in a run of one stage alone.
"""

import os
from pathlib import Path
from typing import Any

import dagster as dg

from evals.gate import GateVerdict
from evals.evaluate import EvalReport
from pipeline.iteration import Iteration
from pipeline.recipe import Recipe, load
from pipeline.registry.record import ModelVersion
from pipeline.rewards.label import RewardLabels
from pipeline.selection.preferences import PreferenceDataset
from pipeline.storage import Record, Store
from pipeline.traces.records import GovernedTraces
from pipeline.training.plan import TrainingPlan, TrainingResult

ITERATION_TAG = "iteration"
LATEST = "iterations/latest.json"

RECORDS: dict[str, tuple[str, type[Record]]] = {
    "traces": ("traces.json", GovernedTraces),
    "reward_labels": ("reward_labels.json", RewardLabels),
    "preference_dataset": ("preference_dataset.json", PreferenceDataset),
    "training_plan": ("training/plan.json", TrainingPlan),
    "policy_checkpoint": ("training/result.json", TrainingResult),
    "eval_report": ("eval_report.json", EvalReport),
    "gate_verdict": ("gate_verdict.json", GateVerdict),
    "model_version": ("model_version.json", ModelVersion),
}
"""The record that each asset leaves, and its name under `iterations/<id>/`."""


class Deployment(dg.ConfigurableResource):
    """One deployment: its recipe with overrides. Both can be changed in the Launchpad for a single run."""

    recipe_path: str
    overrides: list[str] = []

    def recipe(self) -> Recipe:
        return load(self.recipe_path, self.overrides)

    def store(self) -> Store:
        return Store(self.recipe().data_root)

    def iteration(self, id: str) -> Iteration:
        """The iteration of that id, as its `traces` stage published it."""
        found = self.store().read(f"iterations/{id}/{RECORDS['traces'][0]}", GovernedTraces)
        if found is None:
            raise ValueError(f"There is no iteration {id} under {self.store().root}. Launch the whole job once.")
        return found.iteration

    def tracking_uri(self) -> str:
        """MLflow's tracking and registry URI: MLFLOW_TRACKING_URI, else SQLite under the data root."""
        return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{self.store().path('mlflow', 'mlflow.db')}"


def deployment() -> Deployment:
    """The deployment that the environment names; without a word from it, the embedded one."""
    embedded = Path(__file__).parent.parent / "jobs" / "recipes" / "embedded.yaml"
    return Deployment(
        recipe_path=os.environ.get("PREFERENCE_TUNING_RECIPE", str(embedded)),
        overrides=os.environ.get("PREFERENCE_TUNING_OVERRIDES", "").split(),
    )


class Records(dg.ConfigurableIOManager):
    """Hands each asset the record of the one before, read from where its stage published it.

    A run works on one iteration: the one that its `traces` step names (a tag on the run, inherited by re-executions),
    else the newest.
    """

    deployment: dg.ResourceDependency[Deployment]

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        if isinstance(obj, GovernedTraces):
            self.deployment.store().write(LATEST, obj.iteration)
            instance = context.step_context.instance
            instance.add_run_tags(context.run_id, {ITERATION_TAG: obj.iteration.id})

    def load_input(self, context: dg.InputContext) -> Any:
        assert context.upstream_output is not None, "every input is an upstream asset"
        name, kind = RECORDS[context.upstream_output.asset_key.to_user_string()]
        store = self.deployment.store()
        iteration = self._iteration(context, store)
        found = store.read(f"iterations/{iteration}/{name}", kind)
        if found is None:
            raise ValueError(f"Iteration {iteration} has no {name} yet. Launch the job from the stage that makes it.")
        return found

    def _iteration(self, context: dg.InputContext, store: Store) -> str:
        run = context.step_context.instance.get_run_by_id(context.step_context.run_id)
        tagged = run.tags.get(ITERATION_TAG) if run else None
        if tagged:
            return tagged
        latest = store.read(LATEST, Iteration)
        if latest is None:
            raise ValueError("There is no iteration yet. Launch the whole job once: dagster job launch -j preference_tuning")
        return latest.id
