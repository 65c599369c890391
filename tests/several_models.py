"""A folder of recipes, one for each model: the shortened embedded one under several names."""

from collections.abc import Mapping
from pathlib import Path

import yaml

from pipeline.recipe import load
from tests.loop import EMBEDDED, SHORT


def write_recipe(file: Path, root: Path, *overrides: str) -> Path:
    """A whole recipe of the name of its file; `root`: its data root."""
    file.parent.mkdir(parents=True, exist_ok=True)
    recipe = load(EMBEDDED, [*SHORT, f"name={file.stem}", f"data_root={root}", *overrides])
    file.write_text(yaml.safe_dump(recipe.model_dump(mode="json")))
    return file


def environment_of(folder: Path) -> Mapping[str, str]:
    """What names the folder, and no other recipe."""
    return {"PREFERENCE_TUNING_RECIPES": str(folder), "PREFERENCE_TUNING_RECIPE": "", "PREFERENCE_TUNING_OVERRIDES": ""}
