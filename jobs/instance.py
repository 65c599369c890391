"""The Dagster instance of this project: a run carries its recipe, and a launch that cannot go well makes no run.

Named by `dagster.yaml`. Owns what happens before a run exists: the recipe is read and checked, the run's config names
it, and `dagster job launch` joins a run that is the same, stands beside one of another data root, or is refused.
Everything after that is the coordinator's.
"""

import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import dagster as dg

from assets.environment import ITERATION_TAG, environment
from assets.naming import DEPLOYMENT, LABELLING, LOOP, ROLLOUT, names_of
from jobs.coordinator import daemon_is_alive, is_launch_command
from jobs.dagster_internals import ACTIVE_RUN_STATUSES, deserialize_value, serialize_value
from jobs.launcher import launcher_of, reap_dead_runs
from jobs.models import OperatedModel, models
from jobs.workers import DATA_ROOT_TAG
from pipeline import layout
from pipeline.iteration import Iteration
from pipeline.pinning import pinned, refuse_to_mix
from pipeline.recipe import Recipe, load
from pipeline.redaction import guard_output, redacted
from pipeline.storage import Store, digest_json
from pipeline.traces.records import GovernedTraces

DEFINITIONS = "jobs.definitions"
"""The module whose jobs take a recipe."""
ASSET_JOBS = (LOOP, LABELLING)
JOBS = (*ASSET_JOBS, ROLLOUT)
"""The jobs of it that people launch by hand, without the prefix of a model."""
IMPLICIT = "__ASSET_JOB"
"""Dagster's own, of a selection of assets."""
MODEL_TAG = "preference_tuning/model"
"""On each run, where several models share a Dagster: whose it is."""
RECIPE_TAG = "preference_tuning/recipe"
WAIT = "PREFERENCE_TUNING_WAIT"
POLL_S = 1.0


class RecipeInstance(dg.DagsterInstance):
    """An instance whose runs of this project name their recipe in their config and in two tags."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        guard_output()  # every process of Dagster opens the instance: commands, run workers, steps
        command = click.get_current_context(silent=True)
        if is_launch_command(command) and not (command.params["config"] or command.params["config_json"]):
            # Seconds before the code is loaded and a run is made. A recipe in the run's config is read with that.
            job = command.params["job_name"] or ""
            model = _model_of(job) if job.rpartition("__")[2] in JOBS else None
            if model is not None and job == model.names.word(LOOP) and not command.params["op_selection"]:
                _check_launch(model)

    @classmethod
    def config_schema(cls) -> dict[str, Any]:
        """No field of its own in `dagster.yaml`."""
        return {}

    @classmethod
    def config_defaults(cls, base_dir: str) -> Any:
        from dagster._core.instance.ref import InstanceRef

        return InstanceRef.config_defaults(base_dir)

    def create_run(self, **run: Any) -> dg.DagsterRun:
        """The run, with its recipe in its config; or, for `dagster job launch`, the same one that is in progress."""
        launched = is_launch_command(click.get_current_context(silent=True))
        if _takes_a_recipe(run["remote_job_origin"]):
            model = _model_of_run(run)
            config, recipe = _with_recipe(run, model)
            where = {RECIPE_TAG: digest_json(recipe)[:12], DATA_ROOT_TAG: str(Path(recipe.data_root).absolute())}
            if model.names.prefix:
                where[MODEL_TAG] = model.names.prefix
            run |= {"run_config": config, "tags": {**(run["tags"] or {}), **where}}
            loop, traces = model.names.word(LOOP), model.names.word("traces")
            goes_on = run["job_name"] == loop and traces not in (run["step_keys_to_execute"] or [])
            if launched and goes_on:
                _refuse_to_mix(recipe, run["tags"].get(ITERATION_TAG))
        if launched and (same := self._in_progress(run)):
            print(f"Run {same.run_id} of {same.job_name} is in progress already: following it", flush=True)
            return same
        return super().create_run(**run)

    def handle_new_event(self, event: dg.EventLogEntry, **options: Any) -> None:
        """Store the event without the secrets that its texts may quote: errors, logs, metadata."""
        super().handle_new_event(redacted_event(event), **options)

    def _in_progress(self, run: Mapping[str, Any]) -> dg.DagsterRun | None:
        """The run at work that this one would repeat. Raises ClickException where it would be in another one's way."""
        while others := self._others(run):
            same = [other for other in others if _is_same(other, run)]
            if same:
                return same[0]
            if not environment().waits:
                raise click.ClickException(_refusal(others[0], run))
            print(f"Waiting for run {others[0].run_id} of {others[0].job_name} to end", flush=True)
            while any(other.run_id == others[0].run_id for other in self._others(run)):
                time.sleep(POLL_S)
        return None

    def _others(self, run: Mapping[str, Any]) -> list[dg.DagsterRun]:
        """The runs of the same job on the same data root that somebody works on, or that a daemon will take."""
        reap_dead_runs(self)
        tags = {DATA_ROOT_TAG: run["tags"][DATA_ROOT_TAG]} if DATA_ROOT_TAG in run["tags"] else {}
        wanted = dg.RunsFilter(job_name=run["job_name"], tags=tags, statuses=ACTIVE_RUN_STATUSES)
        queue = daemon_is_alive(self)
        return [
            other
            for other in self.get_runs(wanted)
            if launcher_of(self).is_alive(other.run_id) or (queue and other.status is dg.DagsterRunStatus.QUEUED)
        ]


def redacted_event(event: dg.EventLogEntry) -> dg.EventLogEntry:
    """The event with each of its texts through `redacted`; itself where there is nothing to hide."""
    tree = json.loads(serialize_value(event))
    hidden = _without_secrets(tree)
    return event if hidden == tree else deserialize_value(json.dumps(hidden), dg.EventLogEntry)


def _without_secrets(value: Any) -> Any:
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, list):
        return [_without_secrets(each) for each in value]
    if isinstance(value, dict):
        return {key: _without_secrets(each) for key, each in value.items()}
    return value


def _takes_a_recipe(origin: Any) -> bool:
    if origin is None:  # not launched: a step of a test, or `dagster job execute`
        return False
    location = origin.repository_origin.code_location_origin
    target = getattr(location, "loadable_target_origin", None)
    return target is not None and target.module_name == DEFINITIONS


def _with_recipe(run: Mapping[str, Any], model: OperatedModel) -> tuple[dict[str, Any], Recipe]:
    """The run's config with the deployment filled in where it has none, and the recipe that it names. Raises
    ClickException with one line a mistake, and where that recipe belongs to another model."""
    config = run["run_config"] or {}
    is_of_assets = run["job_name"] in (IMPLICIT, *map(model.names.word, ASSET_JOBS))
    name = model.names.word(DEPLOYMENT) if is_of_assets else DEPLOYMENT
    resources = dict(config.get("resources", {}))
    given = dict(resources.get(name, {}).get("config", {}))
    chosen_here = {"recipe_path": model.choice.recipe_path, "overrides": model.choice.overrides}
    deployment: dict[str, Any] = {**chosen_here, **given}
    resources[name] = {"config": deployment}
    try:
        recipe = load(deployment["recipe_path"], deployment["overrides"]) if given else model.recipe
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    if (names := names_of(recipe)) != model.names:
        raise click.ClickException(
            f"{deployment['recipe_path']} is the recipe of {names.prefix or 'a model without a prefix'}, and the job "
            f"{run['job_name']} belongs to {model.names.prefix or 'one without a prefix'}. Launch the job of its model."
        )
    return {**config, "resources": resources}, recipe


def _model_of(job: str) -> OperatedModel | None:
    """Whose job it is; None where no model has one of that name. Raises ClickException with one line a mistake."""
    try:
        of_dagster = models()
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    model = next((each for each in of_dagster.operated if job in map(each.names.word, JOBS)), None)
    if model is None and of_dagster.broken:
        reasons = (f"{each.file}: {each.reason}" for each in of_dagster.broken)
        raise click.ClickException("\n".join([f"No recipe that loads has a job {job}. These do not load:", *reasons]))
    return model


def _model_of_run(run: Mapping[str, Any]) -> OperatedModel:
    """The one whose job or assets a run is about. Raises ClickException where it is about those of several: a run has
    one iteration and one data root."""
    try:
        operated = models().operated
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    if not any(each.names.prefix for each in operated):
        return operated[0]
    if run["job_name"] == IMPLICIT:
        prefixes = {key.path[0] for key in (*(run["asset_selection"] or ()),)}
        prefixes |= {key.asset_key.path[0] for key in (*(run.get("asset_check_selection") or ()),)}
    else:
        prefixes = {run["job_name"].partition("__")[0]}
    chosen_models = [each for each in operated if each.names.prefix in prefixes]
    if len(chosen_models) != 1:
        raise click.ClickException(
            f"A run works for one model, and this one is about {', '.join(sorted(prefixes)) or 'all of them'}. Launch "
            f"the jobs of each: {', '.join(each.names.word(LOOP) for each in operated)}"
        )
    return chosen_models[0]


def _check_launch(model: OperatedModel) -> None:
    """Raises ClickException with what speaks against a launch: model, disk, source, what the environment lacks."""
    from assets.preflight import launch_faults  # heavier than the recipe, whose mistakes are told without it
    from assets.resources import Deployment

    if faults := launch_faults(Deployment(recipe_path=model.choice.recipe_path, overrides=model.choice.overrides)):
        raise click.ClickException("\n".join([*faults, "Nothing was launched. To check again: pt validate"]))


def _refuse_to_mix(recipe: Recipe, iteration: str | None) -> None:
    """Raises ClickException where the iteration that the run would go on with was begun with another recipe."""
    store = Store(recipe.data_root)
    name = layout.LATEST if iteration is None else layout.iteration(iteration, layout.GOVERNED)
    try:
        if iteration is None:
            begun = store.read(layout.LATEST, Iteration)
        else:
            governed = store.read(name, GovernedTraces)
            begun = governed.iteration if governed else None
        if begun is not None:
            refuse_to_mix(pinned(store, begun), recipe, begun)
    except ValueError as error:
        raise click.ClickException(str(error)) from error


def _is_same(other: dg.DagsterRun, run: Mapping[str, Any]) -> bool:
    """Whether the run at work does what this one would: same code, stages, config, recipe and, if named, iteration."""
    iteration = run["tags"].get(ITERATION_TAG)
    return (
        other.remote_job_origin is not None
        and other.remote_job_origin.repository_origin == run["remote_job_origin"].repository_origin
        and sorted(other.op_selection or []) == sorted(run["op_selection"] or [])
        and other.run_config == run["run_config"]
        and other.tags.get(RECIPE_TAG) == run["tags"].get(RECIPE_TAG)
        and iteration in (None, other.tags.get(ITERATION_TAG))
    )


def _refusal(other: dg.DagsterRun, run: Mapping[str, Any]) -> str:
    working, asked = _described(other.tags, other.op_selection), _described(run["tags"], run["op_selection"])
    where = f" on {run['tags'][DATA_ROOT_TAG]}" if DATA_ROOT_TAG in run["tags"] else ""
    return (
        f"Run {other.run_id} of {other.job_name} is at work{where} with {working}, and this launch asks for {asked}. "
        f"Launch again when it has ended, or let the command wait for that: {WAIT}=yes {_command()}"
    )


def _described(tags: Mapping[str, str], selection: Sequence[str] | None) -> str:
    recipe = f"recipe {tags[RECIPE_TAG]} and " if RECIPE_TAG in tags else ""
    return f"{recipe}{' '.join(selection) if selection else 'all stages'}"


def _command() -> str:
    return shlex.join(["dagster", *sys.argv[1:]])
