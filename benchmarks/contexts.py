"""What a stage works with, over a recipe of which a benchmark says only the sections that it is about."""

import os
from collections.abc import Callable
from typing import Any

from pipeline.core.iteration import Iteration
from pipeline.core.storage import Store
from pipeline.demo import MODEL_DIR
from pipeline.recipe import BaseModelSection, Compute, Recipe
from pipeline.recipe.sources import DemoSource
from pipeline.recipe.traces import Traces
from pipeline.traces.context import IterationContext, StageContext
from pipeline.traces.lake import LakeConfig, local_lake

Log = Callable[[str], None]


def quiet(line: str) -> None:
    """A log that nobody reads."""


def recipe_of(**sections: Any) -> Recipe:
    """A recipe with these sections (`name`: the model's), one worker unless they say otherwise, and defaults."""
    base = BaseModelSection(name=sections.pop("name", "tiny"), uri=str(MODEL_DIR))
    given = {"traces": Traces(source=DemoSource()), "compute": Compute(workers=1), **sections}
    return Recipe(name="test", base_model=base, **given)


def stage_context(store: Store, lake: LakeConfig | None = None, log: Log = quiet, **sections: Any) -> StageContext:
    return StageContext(store, recipe_of(**sections), lake or local_lake(store), log, os.environ.get("RAY_ADDRESS", ""))


def context_of(
    store: Store, iteration: Iteration, lake: LakeConfig | None = None, log: Log = quiet, **sections: Any
) -> IterationContext:
    stage = stage_context(store, lake, log, **sections)
    return IterationContext(stage.store, stage.recipe, stage.lake, stage.log, stage.ray, iteration)
