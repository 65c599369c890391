"""The recipe of an iteration: the fields that decide its result are those that it was begun with; operational fields
are always those of now."""

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.core import layout
from pipeline.core.iteration import Iteration
from pipeline.core.storage import Store
from pipeline.recipe import Recipe
from pipeline.recipe.section import Operational, Section, joined, settings


def pin(store: Store, iteration: Iteration, recipe: Recipe) -> None:
    """Publish the recipe of an iteration, for every later step to read.

    What decides its result is of the first time; where and how it runs is of the newest. Without the data root: that is
    where the record lies, also after it was moved.
    """
    begun_with = store.read(iteration.path(layout.RECIPE), Recipe)
    now = recipe if begun_with is None else joined(begun_with, recipe)
    store.write(iteration.path(layout.RECIPE), now.model_copy(update={"data_root": "."}))


def pinned(store: Store, iteration: Iteration) -> Recipe:
    """The recipe that the iteration was begun with. Raises ValueError when it left none."""
    recipe = store.read(iteration.path(layout.RECIPE), Recipe)
    if recipe is None:
        raise ValueError(
            f"Iteration {iteration.id} has no {layout.RECIPE}, so its recipe is unknown. "
            "Launch the whole job: dagster job launch -j preference_tuning"
        )
    return recipe


def differences(begun_with: Section, now: Section) -> list[str]:
    """The deciding fields in which two recipes or sections differ, such as `training.seed: 1, now 3`."""
    before, after = (dict(leaves(settings(recipe, Operational))) for recipe in (begun_with, now))
    absent = "(none)"
    return [
        f"{name}: {before.get(name, absent)!r}, now {after.get(name, absent)!r}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name, absent) != after.get(name, absent)
    ]


def refuse_to_mix(begun_with: Recipe, now: Recipe, iteration: Iteration) -> None:
    """Raises ValueError with the fields in which the recipe of now decides otherwise than the iteration's."""
    if fields := differences(begun_with, now):
        raise ValueError(
            f"Iteration {iteration.id} was begun with another recipe ({'; '.join(fields)}), and a stage cannot mix "
            "the two. Put these fields back, or launch the whole job to begin an iteration under the recipe of now."
        )


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The fields of a nested mapping, by their dotted names; an empty mapping is a value."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
