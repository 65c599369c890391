"""What a stage works with, made once for a step. Records of earlier stages and ports are parameters of their own."""

from collections.abc import Callable
from dataclasses import dataclass

from pipeline.core.iteration import Iteration
from pipeline.core.storage import Store
from pipeline.recipe import Recipe
from pipeline.traces.lake_config import LakeConfig

Log = Callable[[str], None]


@dataclass(frozen=True)
class StageContext:
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
        return self.iteration.path(*parts)
