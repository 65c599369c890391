"""What the assets are given: the deployment (recipe, store, addresses), and the record of the asset before."""

import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import PrivateAttr

from assets.environment import (
    DATA_ROOT_TAG,
    ITERATION_TAG,
    PINNED_TAG,
    chosen,
    environment,
    named_address,
)
from assets.naming import DEPLOYMENT, launch_command
from assets.records import RECORDS, TRACES
from pipeline.core import layout
from pipeline.core.iteration import Iteration
from pipeline.core.redaction import without_secret
from pipeline.core.storage import Store, model_ref
from pipeline.demo.desk.judges import judge_at
from pipeline.recipe import Judge, Recipe, load
from pipeline.recipe.pinning import differences, pin, pinned, refuse_to_mix
from pipeline.recipe.section import joined
from pipeline.recipe.sources import LangfuseApiSource, MlflowSource, RowsSource
from pipeline.registry.base_models import is_pinned, pin_base, with_base
from pipeline.registry.runs import MlflowAddresses
from pipeline.registry.tracking import local_tracking
from pipeline.rewards.judge import Endpoint
from pipeline.rollout.propose import ChampionState, champion
from pipeline.traces.context import IterationContext, Log, StageContext
from pipeline.traces.lake import LakeConfig, local_lake
from pipeline.traces.records import GovernedTraces


class Deployment(dg.ConfigurableResource):
    """One deployment: its recipe with overrides, which a run's config may change.

    The recipe's file is read once. A step of an iteration reads none: its recipe is the one that the first step of its
    run pinned (`of_run`).
    """

    recipe_path: str
    overrides: list[str] = []  # noqa: RUF012 (a pydantic field: copied for each instance)
    _recipe: Recipe | None = PrivateAttr(default=None)

    def recipe(self) -> Recipe:
        """The deployment's recipe. Raises ValueError with one line for each mistake in its file."""
        if self._recipe is None:
            self._recipe = load(self.recipe_path, self.overrides)
        return with_base(self._recipe)

    def fresh(self) -> "Deployment":
        """The same deployment, whose recipe is read again: for a process that outlives an edit of the file."""
        return Deployment(recipe_path=self.recipe_path, overrides=self.overrides)

    def of_run(self, run_id: str, instance: dg.DagsterInstance, log: Log) -> "tuple[str, Deployment]":
        """The iteration that a run goes on with (the newest, unless its tag names one), and the deployment with it.

        The first step of a run pins where and how it runs, as the file has it now; what decides the iteration's result
        is as it was begun. Later steps, and re-executions of the run, read what is pinned and no file. Raises
        ValueError where there is no such iteration.
        """
        run = instance.get_run_by_id(run_id)
        tags = run.tags if run is not None else {}
        id = tags.get(ITERATION_TAG, "")
        if id and tags.get(PINNED_TAG) == id:
            deployment = self._with(Store(tags[DATA_ROOT_TAG], environment().mark_keys), id)
            if deployment is not None:
                return id, deployment
        chosen_iteration = self.iteration(id) if id else self.latest()
        store, begun_with = self.store(), pinned(self.store(), chosen_iteration)
        if fields := differences(begun_with, self.recipe()):
            log(f"The iteration keeps the recipe that it was begun with, not the file's {'; '.join(fields)}")
        pin(store, chosen_iteration, self.recipe())
        if run is not None:
            instance.add_run_tags(run_id, pin_tags(store, chosen_iteration))
        deployment = self._with(store, chosen_iteration.id)
        assert deployment is not None, "it was pinned above"
        return chosen_iteration.id, deployment

    def _with(self, store: Store, id: str) -> "Deployment | None":
        """The deployment with the recipe that is pinned with an iteration; None where there is none."""
        recipe = store.read(layout.iteration(id, layout.RECIPE), Recipe)
        if recipe is None:
            return None
        deployment = self.fresh()
        deployment._recipe = recipe.model_copy(update={"data_root": str(store.root)})
        return deployment

    def fetch_base(self, log: Log) -> None:
        """Bring a base model that lies elsewhere, or has chat settings, below the data root, as it is now. Raises
        ValueError where that cannot be done."""
        self.recipe()
        assert self._recipe is not None, "it was read above"
        if is_pinned(self._recipe.base_model):
            pin_base(self.store(), self._recipe.base_model, self.mlflow(), log)

    def recipe_of(self, iteration: Iteration) -> Recipe:
        """The recipe that an iteration was begun with; where and how it runs is as the deployment says now."""
        return joined(pinned(self.store(), iteration), self.recipe())

    def refuse_another_recipe(self, iteration: Iteration) -> None:
        """Raises ValueError with the fields in which the file decides otherwise than the iteration's recipe: for a
        command whose author would wait for what the file says."""
        refuse_to_mix(pinned(self.store(), iteration), self.recipe(), iteration)

    def stage(self, log: Log) -> StageContext:
        """What works with the data without going on with an iteration: the recipe is the deployment's of now."""
        return StageContext(self.store(), self.recipe(), self.lake(), log, environment().ray)

    def work(self, iteration: Iteration, log: Log) -> IterationContext:
        recipe = self.recipe_of(iteration)
        return IterationContext(self.store(), recipe, self.lake(), log, environment().ray, iteration)

    def store(self) -> Store:
        return Store(self.recipe().data_root, environment().mark_keys)

    def iteration(self, id: str) -> Iteration:
        """The iteration of that id, as its `traces` stage published it."""
        return TRACES.read(self.store(), id).iteration

    def key(self, asset: str) -> dg.AssetKey:
        return dg.AssetKey(asset).with_prefix(self.recipe().key_prefix or [])

    def latest(self) -> Iteration:
        latest_iteration = self.store().read(layout.LATEST, Iteration)
        if latest_iteration is None:
            launch = launch_command(prefix=self.recipe().key_prefix)
            raise ValueError(f"There is no iteration yet. Launch the whole job: {launch}")
        return latest_iteration

    def champion(self) -> ChampionState:
        base = self.recipe().base_model
        promoted = champion(self.store(), base.name)
        return promoted or ChampionState(model=model_ref(Path(base.uri).absolute()), version=0, promotions=0)

    def lake(self) -> LakeConfig:
        """The governed table's catalogue and warehouse. What is no one's business but the operator's is environment."""
        lake, store, read = self.recipe().traces.lake, self.store(), environment()
        local = local_lake(store)
        warehouse = lake.warehouse if "://" in lake.warehouse else f"file://{Path(lake.warehouse).absolute()}"
        catalogue = without_secret("LAKE_CATALOGUE_URI", read.lake_catalogue)
        return LakeConfig(
            catalogue=lake.catalogue,
            uri=local.uri if lake.catalogue == "sqlite" else catalogue,
            warehouse=warehouse if lake.warehouse else local.warehouse,
            properties=read.lake_properties(is_rest=lake.catalogue == "rest"),
        )

    def source_uri(self) -> str:
        """Where the traces come from; of a database and of a server the environment says it. Raises ValueError where it
        does not."""
        source = self.recipe().traces.source
        if isinstance(source, RowsSource) and source.query:
            address = environment().traces_database
            return named_address("TRACES_DATABASE_URL", address, "postgresql://user@host/database")
        if isinstance(source, LangfuseApiSource):
            return environment().langfuse_address()
        if isinstance(source, MlflowSource):
            return named_address("MLFLOW_TRACES_URI", environment().mlflow_traces, "http://host:5000")
        return getattr(source, "uri", str(self.store().path(layout.PRODUCTION)))

    def judge_endpoint(self) -> Endpoint | None:
        """JUDGE_URL with JUDGE_API_KEY; None where no address is set."""
        read = environment()
        return Endpoint(read.judge_url, read.judge_key) if read.judge_url else None

    def judge(self, settings: Judge | None):
        """The judge that these settings name, while a block runs: at its endpoint, or the embedded desk's own."""
        return judge_at(settings, self.judge_endpoint(), self.store().path(layout.JUDGE_SERVER))

    def lineage(self, iteration: Iteration) -> frozenset[str]:
        """Digests of the policy and of what it came from, as far as the recipe knows: none of them may judge it."""
        return frozenset({iteration.champion.digest, model_ref(Path(self.recipe().base_model.uri).absolute()).digest})

    def code_version(self) -> str:
        """The commit that runs, or the package's version outside a checkout."""
        return environment().code_version or _commit() or version("preference-tuning")

    def tracking_uri(self) -> str:
        """Where MLflow has the runs: MLFLOW_TRACKING_URI, else SQLite under the data root."""
        return without_secret("MLFLOW_TRACKING_URI", environment().tracking) or local_tracking(self.store())

    def registry_uri(self) -> str:
        """Where MLflow has the registered versions: MLFLOW_REGISTRY_URI, else with the runs."""
        return without_secret("MLFLOW_REGISTRY_URI", environment().registry) or self.tracking_uri()

    def mlflow(self) -> MlflowAddresses:
        return MlflowAddresses(self.tracking_uri(), self.registry_uri(), environment().experiment)

    def notify_url(self) -> str:
        """Where messages to people go: NOTIFY_URL; "" sends none."""
        return environment().notify


def deployment() -> Deployment:
    """The deployment that the environment names; without a word from it, the embedded one."""
    choice = chosen()
    return Deployment(recipe_path=choice.recipe_path, overrides=choice.overrides)


class Records(dg.IOManager):
    """Hands each asset the record of the one before, read from where its stage published it.

    A run works on one iteration: that of its tag, which its first step put there and re-executions inherit.
    """

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        if isinstance(obj, GovernedTraces):
            store = context.resources.deployment.store()
            store.write(layout.LATEST, obj.iteration)
            context.step_context.instance.add_run_tags(context.run_id, pin_tags(store, obj.iteration))

    def load_input(self, context: dg.InputContext) -> Any:
        assert context.upstream_output is not None, "every input is an upstream asset"
        step, log = context.step_context, context.log.warning
        try:
            id, deployment = context.resources.deployment.of_run(step.run_id, step.instance, log)
            return RECORDS[context.upstream_output.asset_key.path[-1]].read(deployment.store(), id)
        except ValueError as error:  # a record that is not there is not there a second later either
            raise dg.Failure(str(error), allow_retries=False) from error


def pin_tags(store: Store, iteration: Iteration) -> dict[str, str]:
    return {ITERATION_TAG: iteration.id, PINNED_TAG: iteration.id, DATA_ROOT_TAG: str(store.root)}


records = dg.IOManagerDefinition(lambda _: Records(), required_resource_keys={DEPLOYMENT})


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
