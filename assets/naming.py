"""What the definitions of one model are called in Dagster: with several models in one instance, each has its prefix.

Owns the prefix and the names that it makes. A model without one has the plain names, as a deployment alone has them.
"""

import re
from typing import TYPE_CHECKING, NamedTuple

from assets.environment import environment
from pipeline.recipe import Recipe

if TYPE_CHECKING:  # commands that only read have names to say, and no second for Dagster
    import dagster as dg

LOOP, ROLLOUT, LABELLING = "preference_tuning", "canary_rollout", "label_traces"
"""The jobs that take a recipe: the whole loop, its rollout, and its first two stages alone."""
DEPLOYMENT, IO_MANAGER = "deployment", "io_manager"
"""Resources."""


class DefinitionNames(NamedTuple):
    """Names of jobs, pools, sensors and resources (`prefix__word`) and keys of assets (`prefix/asset`)."""

    prefix: str = ""

    def word(self, plain: str) -> str:
        return f"{self.prefix}__{plain}" if self.prefix else plain

    def key(self, asset: str) -> "dg.AssetKey":
        import dagster as dg

        return dg.AssetKey([self.prefix, asset] if self.prefix else [asset])


PLAIN = DefinitionNames()


def names_of(recipe: Recipe) -> DefinitionNames:
    """The recipe's `key_prefix`; where the environment names a folder of recipes, else its name."""
    if recipe.key_prefix is not None:
        return DefinitionNames(recipe.key_prefix)
    return DefinitionNames(re.sub(r"[^A-Za-z0-9]+", "_", recipe.name).strip("_") if environment().recipes else "")
