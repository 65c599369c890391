"""How a run says what it works on: the deployment that the environment names, and the tag of its iteration.

The deployment is PREFERENCE_TUNING_RECIPE with PREFERENCE_TUNING_OVERRIDES.

Light on purpose: `dagster job launch` asks it before anything else is imported.
"""

import os
from pathlib import Path
from typing import NamedTuple

from pipeline.recipe.overrides import split

ITERATION_TAG = "iteration"
"""On a run: the id of the iteration that it makes or goes on with."""
EMBEDDED = Path(__file__).parent.parent / "jobs" / "recipes" / "embedded.yaml"


class Choice(NamedTuple):
    """A recipe's file, as an absolute path, and what overrides its fields."""

    recipe_path: str
    overrides: list[str]


def chosen() -> Choice:
    """What the environment names; the embedded recipe where it names none."""
    path = os.environ.get("PREFERENCE_TUNING_RECIPE") or str(EMBEDDED)
    return Choice(str(Path(path).absolute()), split(os.environ.get("PREFERENCE_TUNING_OVERRIDES", "")))
