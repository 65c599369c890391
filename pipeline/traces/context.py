"""What a stage works with: made once for a step and handed down whole, instead of as its parts.

Refuses to read a recipe's file: the recipe here is the one to begin with, or the one that the iteration was begun with.
Records of earlier stages and ports (endpoints, servers, checkers) are parameters beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pipeline.core.iteration import Iteration
from pipeline.core.storage import Store
from pipeline.recipe import Recipe
from pipeline.traces.lake_config import LakeConfig

Log = Callable[[str], None]


@dataclass(frozen=True)
class StageContext:
    """Before there is an iteration: the traces stage, and the upkeep of data."""

    store: Store
    recipe: Recipe
    lake: LakeConfig
    """How to reach the governed table; stages open it themselves."""
    log: Log
    ray: str
    """The address of the Ray cluster; "" without one."""


@dataclass(frozen=True)
class IterationContext(StageContext):
    """A stage of an iteration; `recipe` is the pinned one, with the operational fields of now."""

    iteration: Iteration

    def path(self, *parts: str) -> str:
        """Name of something that the iteration publishes, relative to the store's root."""
        return self.iteration.path(*parts)
