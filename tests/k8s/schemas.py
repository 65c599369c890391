"""The lint's schemas, over the reference data beside the checkout: compiled once a run."""

from pathlib import Path

from k8s.lint.schemas import Schemas

DATA = Path(__file__).parents[3] / "shared" / "data" / "k8s-schemas"

SCHEMAS = Schemas(DATA)
known, problems = SCHEMAS.known, SCHEMAS.problems


def unchecked() -> set[str]:
    """Kinds of which a CEL rule that was met could not be decided. HTTPRoute's ask for defaults that only a server
    fills in."""
    return {kind for kind, _ in SCHEMAS.unchecked} - {"HTTPRoute"}
