"""A stage as an asset of Dagster, made for one model or for several: `@loop_asset(...)` in place of `@dg.asset(...)`.

Owns what depends on the model: keys, the pool, and which deployment a step is given. Each model's assets ask for a
resource of their own, so no step can be handed the deployment of another model. Owns `code_version` too: a digest of
the stage's own sources, so that Dagster's "stale" marks speak of the stage and not of every commit.
"""

import hashlib
import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Required, Unpack

import dagster as dg
from typing_extensions import TypedDict

from assets.naming import DEPLOYMENT, IO_MANAGER, DefinitionNames
from pipeline.recipe import Recipe

ROOT = Path(__file__).parent.parent
Compute = Callable[..., Generator[Any]]
NO_CHECKS: Mapping[str, str] = MappingProxyType({})


class AssetSettings(TypedDict, total=False):
    """What `@dg.asset` takes of a stage, whatever the model; the group without its prefix."""

    group_name: Required[str]
    kinds: set[str]
    owners: Sequence[str]
    output_required: bool
    retry_policy: dg.RetryPolicy


class LoopAsset(NamedTuple):
    """A stage that has been described and not yet been made for a model."""

    compute: Compute
    code: tuple[str, ...]
    checks: Mapping[str, str]
    loads_a_model: bool
    settings: AssetSettings

    @property
    def name(self) -> str:
        return self.compute.__name__

    def named(self, names: DefinitionNames, recipe: Recipe | None = None) -> dg.AssetsDefinition:
        """The asset of one model. Without a recipe: pools and freshness as its defaults have them."""
        deployment, key, compute = names.word(DEPLOYMENT), names.key(self.name), self.compute
        settings: AssetSettings = {**self.settings, "group_name": names.word(self.settings["group_name"])}
        _, _, *records = inspect.signature(compute).parameters.values()

        def step(context: dg.AssetExecutionContext, **inputs: Any) -> Generator[Any]:
            yield from compute(context, getattr(context.resources, deployment), **inputs)

        return dg.asset(
            key=key,
            ins={each.name: dg.AssetIn(names.key(each.name), dagster_type=each.annotation) for each in records},
            check_specs=[dg.AssetCheckSpec(name, asset=key, description=text) for name, text in self.checks.items()],
            description=inspect.getdoc(compute),
            pool=self._pool(names, recipe),
            code_version=code_version(self.code),
            required_resource_keys={deployment},
            io_manager_key=names.word(IO_MANAGER),
            **settings,
        )(step)

    def _pool(self, names: DefinitionNames, recipe: Recipe | None) -> str | None:
        """Trainings of one model come one after the other. Whoever shares a GPU shares the pool of all that load it."""
        if self.loads_a_model and recipe is not None and recipe.compute.pool is not None:
            return recipe.compute.pool
        return names.word("training") if self.name == "policy_checkpoint" else None


def loop_asset(
    *code: str, checks: Mapping[str, str] = NO_CHECKS, loads_a_model: bool = False, **settings: Unpack[AssetSettings]
) -> Callable[[Compute], LoopAsset]:
    """For a generator function of (context, deployment, *records of the assets of the parameters' names).

    `code`: files and folders below the repository's root whose sources are the stage's. `checks`: their descriptions,
    by name.
    """
    return lambda compute: LoopAsset(compute, code, checks, loads_a_model, settings)


@cache
def code_version(code: tuple[str, ...]) -> str:
    """12 digits of a sha256 over the Python sources of these files and folders."""
    digest = hashlib.sha256()
    for path in (ROOT / each for each in code):
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            digest.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:12]
