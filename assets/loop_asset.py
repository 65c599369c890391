"""A stage as an asset of Dagster: the deployment that the run pinned, errors without secrets, and a `code_version` that
is a digest of the stage's own sources."""

import hashlib
import inspect
from collections.abc import Callable, Generator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import dagster as dg

from assets.naming import DEPLOYMENT, IO_MANAGER, owner_of
from assets.preflight import refuse_faults
from pipeline.core.redaction import errors_redacted

ROOT = Path(__file__).parent.parent
Compute = Callable[..., Generator[Any]]
NO_CHECKS: Mapping[str, str] = MappingProxyType({})


def loop_asset(
    group: str, kinds: set[str], *code: str, checks: Mapping[str, str] = NO_CHECKS, **settings: Any
) -> Callable[[Compute], dg.AssetsDefinition]:
    """Decorates a generator function of (context, deployment, *records of the assets of the parameters' names).

    `code`: files and folders below the repository's root whose sources are the stage's, with its own file. `checks`:
    their descriptions, by name. `settings`: further arguments of `dg.asset`.
    """

    def decorate(compute: Compute) -> dg.AssetsDefinition:
        own = Path(inspect.getfile(compute)).relative_to(ROOT).as_posix()
        _, _, *records = inspect.signature(compute).parameters.values()

        def step(context: dg.AssetExecutionContext, **inputs: Any) -> Generator[Any]:
            with errors_redacted():
                deployment = context.resources.deployment
                if inputs:  # their loading has named the run's iteration
                    _, deployment = deployment.of_run(context.run_id, context.instance, context.log.warning)
                refuse_faults(context, deployment)
                yield from compute(context, deployment, **inputs)

        name = compute.__name__
        return dg.asset(
            name=name,
            ins={each.name: dg.AssetIn(dagster_type=each.annotation) for each in records},
            check_specs=[dg.AssetCheckSpec(check, asset=name, description=text) for check, text in checks.items()],
            description=inspect.getdoc(compute),
            code_version=code_version((own, *code)),
            group_name=group,
            kinds=kinds,
            owners=[owner_of(group)],
            required_resource_keys={DEPLOYMENT},
            io_manager_key=IO_MANAGER,
            **settings,
        )(step)

    return decorate


@cache
def code_version(code: tuple[str, ...]) -> str:
    """12 digits of a sha256 over the Python sources of these files and folders."""
    digest = hashlib.sha256()
    for path in (ROOT / each for each in code):
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            digest.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:12]
