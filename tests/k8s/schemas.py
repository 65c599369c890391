"""The lint's schemas, over the reference data beside the checkout."""

from pathlib import Path

from k8s.lint.schemas import Schemas

DATA = Path(__file__).parents[3] / "shared" / "data" / "k8s-schemas"

SCHEMAS = Schemas(DATA)
known, problems, unchecked = SCHEMAS.known, SCHEMAS.problems, SCHEMAS.unchecked
