"""The models that this Dagster runs: of the one recipe that the environment names, or of each file in its folder.

Owns that models which share a Dagster share nothing else: no names, no data root, no table, no registered model. A
file that does not load, or that would be in another's way, is left out with the reason, and the others load: a mistake
in one team's recipe does not stop the schedules of all. With nothing left there is nothing to run, which is an error.
"""

from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from assets.environment import Choice, chosen, environment
from assets.naming import DefinitionNames, names_of
from pipeline.recipe import Recipe, load
from pipeline.storage import shown_path

FOLDER = "PREFERENCE_TUNING_RECIPES"
PROJECT_MODULE = "tuning"
"""The package of a project of `pt init`, which dg wants to find in the project's folder."""
PROJECT_DEFINITIONS = f"{PROJECT_MODULE}.definitions"


class OperatedModel(NamedTuple):
    """One model of this Dagster: its recipe, and what its definitions are called."""

    choice: Choice
    recipe: Recipe
    names: DefinitionNames


class BrokenRecipe(NamedTuple):
    """A file of the folder that is left out."""

    file: Path
    reason: str


class ModelsOfDagster(NamedTuple):
    operated: list[OperatedModel]
    broken: list[BrokenRecipe]


def models() -> ModelsOfDagster:
    """Raises ValueError where the one recipe does not resolve, or the folder has none that does."""
    folder = environment().recipes
    if folder:
        return _models_of(Path(folder).absolute())
    choice = chosen()
    recipe = load(*choice)
    return ModelsOfDagster([OperatedModel(choice, recipe, names_of(recipe))], [])


def _models_of(folder: Path) -> ModelsOfDagster:
    if environment().overrides:
        raise ValueError(
            f"PREFERENCE_TUNING_OVERRIDES is for one recipe, and {FOLDER} names a folder of them: write the fields "
            "into the files, or unset it."
        )
    files = sorted(file for file in folder.glob("*.y*ml") if not file.name.startswith("."))
    if not files:
        what = "no recipe in it (*.yaml)" if folder.is_dir() else "it is no folder"
        raise ValueError(f"{FOLDER} is {shown_path(folder)}: {what}. Name a folder with one YAML file for each model.")
    loaded: dict[Path, OperatedModel] = {}
    broken: dict[Path, str] = {}
    for file in files:
        choice = Choice(str(file), [])
        try:
            loaded[file] = OperatedModel(choice, recipe := load(*choice), names_of(recipe))
            if not loaded[file].names.prefix:
                raise ValueError(f"{file}: its name {recipe.name!r} has no letter or digit of ASCII: add a key_prefix.")
        except ValueError as error:
            broken[file] = str(error)
    for (one, first), (other, second) in combinations(loaded.items(), 2):
        if reasons := [reason for conflict in CONFLICTS for reason in conflict(first, second)]:
            for file, against in ((one, other), (other, one)):
                before = [broken[file]] if file in broken else []
                broken[file] = "\n".join(
                    [*before, *(f"{file.name} and {against.name}: {reason}" for reason in reasons)]
                )
    operated = [model for file, model in loaded.items() if file not in broken]
    if not operated:
        raise ValueError("\n".join([f"No recipe of {shown_path(folder)} can be used:", *broken.values()]))
    return ModelsOfDagster(operated, [BrokenRecipe(file, broken[file]) for file in files if file in broken])


def _same_names(first: OperatedModel, second: OperatedModel) -> Iterator[str]:
    if first.names == second.names:
        yield f"both are called {first.names.prefix}. Give one another name, or a key_prefix."


def _same_root(first: OperatedModel, second: OperatedModel) -> Iterator[str]:
    one, other = (Path(model.recipe.data_root).resolve() for model in (first, second))
    if one.is_relative_to(other) or other.is_relative_to(one):
        where = f"both have the data_root {one}" if one == other else f"one data_root is in the other ({one}, {other})"
        yield f"{where}. Give each model a folder of its own."


def _same_table(first: OperatedModel, second: OperatedModel) -> Iterator[str]:
    one, other = (model.recipe.traces.lake.catalogue for model in (first, second))
    if one == other != "sqlite":
        yield (
            f"both keep the governed table in the {one} catalogue that the environment names, and there is one. "
            "Set traces.lake.catalogue: sqlite, or run one of them in a Dagster of its own."
        )


def _same_registered_model(first: OperatedModel, second: OperatedModel) -> Iterator[str]:
    one, other = (model.recipe.base_model.name for model in (first, second))
    if one == other and environment().tracking:
        yield (
            f"both register their versions as {one} at MLFLOW_TRACKING_URI. Give one of them another base_model.name."
        )


CONFLICTS: tuple[Callable[[OperatedModel, OperatedModel], Iterator[str]], ...] = (
    _same_names,
    _same_root,
    _same_table,
    _same_registered_model,
)
