"""A stage as an asset of Dagster: key prefix and pool of the recipe, the deployment that the run pinned, errors without
secrets, and a `code_version` that is a digest of the stage's own sources."""

import hashlib
import inspect
from collections.abc import Callable, Generator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import dagster as dg

from assets.naming import DEPLOYMENT, IO_MANAGER, asset_key
from pipeline.core.redaction import errors_redacted
from pipeline.recipe import Recipe

ROOT = Path(__file__).parent.parent
Compute = Callable[..., Generator[Any]]
OWNERS = {"traces": "team:ml-platform", "registry": "team:ml-platform"}
NO_CHECKS: Mapping[str, str] = MappingProxyType({})


class LoopAsset:
    """A stage, still to be made for a model: decorates a generator function of (context, deployment, *records of the
    assets of the parameters' names)."""

    def __init__(
        self,
        group: str,
        kinds: set[str],
        *code: str,
        checks: Mapping[str, str] = NO_CHECKS,
        loads_a_model: bool = False,
        **settings: Any,
    ) -> None:
        """`code`: files and folders below the repository's root whose sources are the stage's, with its own file.
        `checks`: their descriptions, by name. `settings`: further arguments of `dg.asset`."""
        self.group, self.kinds, self.code, self.checks = group, kinds, code, checks
        self.loads_a_model, self.settings = loads_a_model, settings

    def __call__(self, compute: Compute) -> Self:
        own = Path(inspect.getfile(compute)).relative_to(ROOT).as_posix()
        self.compute, self.name, self.code = compute, compute.__name__, (own, *self.code)
        return self

    def of(self, recipe: Recipe | None = None) -> dg.AssetsDefinition:
        """The asset of one model. Without a recipe: keys and pools as its defaults have them."""
        prefix, compute = (recipe.key_prefix if recipe is not None else None), self.compute
        key = asset_key(self.name, prefix)
        _, _, *records = inspect.signature(compute).parameters.values()

        def step(context: dg.AssetExecutionContext, **inputs: Any) -> Generator[Any]:
            with errors_redacted():
                deployment = context.resources.deployment
                if inputs:  # their loading has named the run's iteration
                    _, deployment = deployment.of_run(context.run_id, context.instance, context.log.warning)
                yield from compute(context, deployment, **inputs)

        return dg.asset(
            key=key,
            ins={e.name: dg.AssetIn(asset_key(e.name, prefix), dagster_type=e.annotation) for e in records},
            check_specs=[dg.AssetCheckSpec(name, asset=key, description=text) for name, text in self.checks.items()],
            description=inspect.getdoc(compute),
            pool=self._pool(recipe),
            code_version=code_version(self.code),
            group_name=self.group,
            kinds=self.kinds,
            owners=[OWNERS.get(self.group, "team:post-training")],
            required_resource_keys={DEPLOYMENT},
            io_manager_key=IO_MANAGER,
            **self.settings,
        )(step)

    def _pool(self, recipe: Recipe | None) -> str | None:
        """Trainings come one after the other. Whoever shares a GPU shares the pool of all that load it."""
        if self.loads_a_model and recipe is not None and recipe.compute.pool is not None:
            return recipe.compute.pool
        return "training" if self.name == "policy_checkpoint" else None


@cache
def code_version(code: tuple[str, ...]) -> str:
    """12 digits of a sha256 over the Python sources of these files and folders."""
    digest = hashlib.sha256()
    for path in (ROOT / each for each in code):
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            digest.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:12]
