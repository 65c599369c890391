"""What a run of this project carries, decided before it exists: its model's recipe, its data root and its iteration.

Owns the run's config and tags, and the refusals of a run that would work for two models or mix two recipes in one
iteration. The iteration is config with the default "latest". What that is at the moment of the launch becomes a tag, so
a run keeps its iteration when another one begins the next meanwhile. A run whose first stage is `traces` has none yet:
that stage names it.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from assets.environment import ITERATION_TAG, LATEST_ITERATION
from assets.naming import DEPLOYMENT, IO_MANAGER, LABELLING, LOOP, ROLLOUT, DefinitionNames, names_of
from jobs.models import PROJECT_DEFINITIONS, OperatedModel, models
from jobs.workers import DATA_ROOT_TAG
from pipeline import layout
from pipeline.iteration import Iteration
from pipeline.pinning import pinned, refuse_to_mix
from pipeline.recipe import Recipe, load
from pipeline.storage import Store, digest_json
from pipeline.traces.records import GovernedTraces

DEFINITIONS = ("jobs.definitions", PROJECT_DEFINITIONS)
"""Modules whose jobs take a recipe."""
ASSET_JOBS = (LOOP, LABELLING)
JOBS = (*ASSET_JOBS, ROLLOUT)
"""The jobs of it that people launch by hand, without the prefix of a model."""
IMPLICIT = "__ASSET_JOB"
"""Dagster's own, of a selection of assets."""
MODEL_TAG = "preference_tuning/model"
"""On each run, where several models share a Dagster: whose it is."""
RECIPE_TAG = "preference_tuning/recipe"


def carried(run: Mapping[str, Any], steps: Iterable[str], refuses_to_mix: bool) -> dict[str, Any]:
    """`run_config` and `tags` of a run that is about to be made. `steps`: what it executes; `refuses_to_mix`: whether
    a person waits to be told that the iteration was begun with another recipe.

    Raises ClickException with one line a mistake.
    """
    model = _model_of_run(run)
    names = model.names
    is_of_assets = run["job_name"] in (IMPLICIT, *map(names.word, ASSET_JOBS))
    config, recipe = _with_recipe(run, model, is_of_assets)
    tags = {**(run["tags"] or {}), RECIPE_TAG: digest_json(recipe)[:12]}
    tags[DATA_ROOT_TAG] = str(Path(recipe.data_root).absolute())
    if names.prefix:
        tags[MODEL_TAG] = names.prefix
    if is_of_assets:
        config, asked = _with_iteration(config, names)
        if names.word("traces") not in steps:
            goes_on = run["job_name"] == names.word(LOOP)
            tags |= _begun(recipe, asked or tags.get(ITERATION_TAG, ""), refuses_to_mix and goes_on)
        elif asked:
            raise click.ClickException(
                f"The run is to make traces, which names its iteration, and its config names {asked}. Launch the "
                f"stages after it (-o '{names.word('reward_labels')}*'), or leave iteration at {LATEST_ITERATION}."
            )
    return {"run_config": config, "tags": tags}


def takes_a_recipe(remote: Any, code: Any = None) -> bool:
    """Whether the code of a run is this project's. `remote`: where a code server has it; `code`: where this process
    does. None of both is a step of a test."""
    if remote is not None:
        location = remote.repository_origin.code_location_origin
        return getattr(getattr(location, "loadable_target_origin", None), "module_name", None) in DEFINITIONS
    return code is not None and getattr(code.repository_origin.code_pointer, "module", None) in DEFINITIONS


def model_of(job: str) -> OperatedModel | None:
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


def _with_recipe(run: Mapping[str, Any], model: OperatedModel, is_of_assets: bool) -> tuple[dict[str, Any], Recipe]:
    """The run's config with the deployment filled in where it has none, and the recipe that it names. Raises
    ClickException with one line a mistake, and where that recipe belongs to another model."""
    config = run["run_config"] or {}
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


def _with_iteration(config: dict[str, Any], names: DefinitionNames) -> tuple[dict[str, Any], str]:
    """The config with the iteration filled in where it has none, and its id; "" of the latest."""
    given = config["resources"].get(names.word(IO_MANAGER), {}).get("config", {})
    asked = given.get("iteration", LATEST_ITERATION)
    resources = {**config["resources"], names.word(IO_MANAGER): {"config": {"iteration": asked}}}
    return {**config, "resources": resources}, "" if asked == LATEST_ITERATION else asked


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


def _begun(recipe: Recipe, id: str, refuses_to_mix: bool) -> dict[str, str]:
    """The tag of the iteration that the run goes on with; "" is the latest, and there may be none yet. Raises
    ClickException where it was begun with another recipe, or is not there."""
    store = Store(recipe.data_root)
    try:
        if id:
            governed = store.read(layout.iteration(id, layout.GOVERNED), GovernedTraces)
            if governed is None:
                raise ValueError(f"{store.root} has no iteration {id}. Name one that has not been removed: pt status")
            begun = governed.iteration
        else:
            begun = store.read(layout.LATEST, Iteration)
        if begun is not None and refuses_to_mix:
            refuse_to_mix(pinned(store, begun), recipe, begun)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    return {ITERATION_TAG: begun.id} if begun else {}
