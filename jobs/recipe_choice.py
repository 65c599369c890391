"""Which recipe a command works on: the same arguments for each that reads one, and how it is typed again."""

import argparse
import shlex
from pathlib import Path

from assets.environment import EMBEDDED, PROJECT, Choice, chosen
from pipeline.recipe import Recipe, load
from pipeline.registry.base_models import with_base


def add_recipe_arguments(options: argparse.ArgumentParser) -> None:
    options.add_argument(
        "recipe",
        nargs="?",
        default=argparse.SUPPRESS,  # absent, it leaves what --recipe said
        metavar="RECIPE",
        help="its path; default: PREFERENCE_TUNING_RECIPE, else recipe.yaml here, else the embedded one",
    )
    options.add_argument("--recipe", default="", metavar="RECIPE", help="the same")
    options.add_argument(
        "--override", nargs="+", action="extend", default=[], metavar="K=V",
        help="such as training.seed=3, after those of PREFERENCE_TUNING_OVERRIDES",
    )  # fmt: skip


def recipe_choice(asked: argparse.Namespace) -> Choice:
    """The recipe's path and overrides: what the environment says where nothing was typed. Raises ValueError for
    overrides with an open quote."""
    named = chosen()
    return Choice(asked.recipe or named.recipe_path, [*named.overrides, *asked.override])


def chosen_recipe(asked: argparse.Namespace) -> Recipe:
    """Raises ValueError with a line for each mistake."""
    return with_base(load(*recipe_choice(asked)))


def typed(command: str, choice: Choice | None = None) -> str:
    """The command with the recipe and overrides of `choice`, by default those in force, to be pasted in this folder."""
    recipe, overrides = choice or chosen()
    unnamed = str((PROJECT if PROJECT.is_file() else EMBEDDED).absolute())
    shown = "" if {recipe, chosen().recipe_path} == {unnamed} else recipe.removeprefix(f"{Path.cwd()}/")
    named = {"PREFERENCE_TUNING_RECIPE": shown, "PREFERENCE_TUNING_OVERRIDES": shlex.join(overrides)}
    return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in named.items() if value), command])
