"""What a stage works with, over a recipe of which a test says only the sections that it is about."""

import os
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from pipeline.core.iteration import Iteration
from pipeline.core.mark_keys import MarkKeys
from pipeline.core.storage import Store
from pipeline.demo import MODEL_DIR
from pipeline.recipe import BaseModelSection, Compute, Recipe
from pipeline.recipe.traces import DemoSource, Traces
from pipeline.traces.context import IterationContext, StageContext
from pipeline.traces.erased import ErasedUser, Forgotten, user_hash
from pipeline.traces.lake import LakeConfig, local_lake

Log = Callable[[str], None]
KEYS = MarkKeys("5e" * 32)
"""As conftest puts them into the environment."""


def mark_of(user_id: str, keys: MarkKeys = KEYS) -> str:
    """As a store with these keys has it."""
    return keys.key(Path("/nowhere")).mark(user_hash(user_id))


def forgetting(users: Mapping[str, datetime | None]) -> Forgotten:
    """These users, each from a moment on or altogether."""
    entries = [ErasedUser(mark=mark_of(user), since=since, proof="p") for user, since in users.items()]
    return Forgotten(entries, KEYS.key(Path("/nowhere")))


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
    return IterationContext(
        store, recipe_of(**sections), lake or local_lake(store), log, os.environ.get("RAY_ADDRESS", ""), iteration
    )
