"""The recipe's fields: explained, and in a schema that is up to date and that the shipped recipes keep to."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from jobs.recipe import fields, schema
from tests.loop import ROOT

SCHEMA = ROOT / "jobs" / "recipes" / "recipe.schema.json"
RECIPES = sorted(SCHEMA.parent.glob("*.yaml"))
IDS = [path.stem for path in RECIPES]


def written() -> dict[str, Any]:
    return json.loads(SCHEMA.read_text())


def errors(tree: Any) -> list[str]:
    return [error.json_path for error in jsonschema.Draft202012Validator(written()).iter_errors(tree)]


def test_the_written_schema_is_that_of_the_code() -> None:
    outdated = "Write it again: pt recipe schema > jobs/recipes/recipe.schema.json"
    assert written() == schema(), outdated


def test_a_field_has_type_default_mark_and_meaning() -> None:
    rows = {row.field: row for row in fields("")}
    assert [name for name, row in rows.items() if not row.meaning] == []
    assert rows["compute.workers"][1:4] == ("integer, over 0, at most 100,000", "2", "may differ")
    assert rows["selection.method"][1:4] == ('"auto", "grpo", "dpo", "sft", "kto"', '"auto"', "")
    assert rows["compute.budget_usd"].type == "number, over 0, at most 1,000,000,000,000 or null"
    assert rows["base_model.uri"].default == "to be given"
    assert rows["rewards.rated.feedback"].default == "0.2", "what the section holds there, not its class"
    assert rows["rollout.dwell_s"].type == "list of number"


@pytest.mark.parametrize("path", RECIPES, ids=IDS)
def test_a_shipped_recipe_names_the_schema_and_keeps_to_it(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith(f"# yaml-language-server: $schema={SCHEMA.name}\n")
    assert errors(yaml.safe_load(text)) == []


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"training": {"seeed": 1}}, "$.training"),
        ({"compute": {"workers": 0}}, "$.compute.workers"),
        ({"traces": {"source": {"kind": "otell", "uri": "/x"}}}, "$.traces.source"),
        ({"nam": "x"}, "$"),
    ],
)
def test_the_schema_refuses_what_the_code_refuses(change: dict[str, Any], where: str) -> None:
    tree = yaml.safe_load((SCHEMA.parent / "embedded.yaml").read_text())
    assert where in errors({**tree, **change})
