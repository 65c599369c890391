"""The reference of the recipe: up to date with the code, complete, and a schema that the shipped recipes keep to."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from jobs import reference

RECIPES = sorted((reference.ROOT / "jobs" / "recipes").glob("*.yaml"))
IDS = [path.stem for path in RECIPES]


def schema() -> dict[str, Any]:
    return json.loads(reference.SCHEMA.read_text())


def errors(tree: Any) -> list[str]:
    return [error.json_path for error in jsonschema.Draft202012Validator(schema()).iter_errors(tree)]


def test_the_written_files_are_those_of_the_code() -> None:
    outdated = "Write them again: python -m jobs.reference"
    assert reference.PAGE.read_text() == reference.page(), outdated
    assert reference.SCHEMA.read_text() == reference.schema(), outdated


def test_every_field_has_a_description() -> None:
    assert [row[0] for table in reference.tables() for row in table.rows if not row[-1]] == []


def test_every_table_says_what_it_is_about() -> None:
    assert [table.title for table in reference.tables() if not table.about] == []


def test_no_two_tables_have_one_title() -> None:
    titles = [table.title for table in reference.tables()]
    assert sorted({title for title in titles if titles.count(title) > 1}) == []


def test_a_row_has_type_unit_default_and_mark() -> None:
    rows = {row[0]: row for table in reference.tables() for row in table.rows}
    assert rows["`compute.workers`"][1:4] == ("integer, at least 1, at most 100,000", "`2`", "may differ")
    assert rows["`training.timeout_s`"][1:4] == (
        "number, over 0, at most 1,000,000,000 (seconds)",
        "`21600.0`",
        "may differ",
    )
    assert rows["`selection.method`"][1:4] == ("one of `auto`, `grpo`, `dpo`, `sft`, `kto`", '`"auto"`', "")
    assert rows["`compute.budget_usd`"][1] == "number, over 0, at most 1,000,000,000,000, or null (US dollars)"
    assert rows["`base_model.uri`"][2] == "to be given"
    assert rows["`rewards.rated.feedback`"][2] == "`0.2`", "what the section holds there, not its class"
    assert rows["`rollout.dwell_s`"][1] == "list of: number (seconds each)"


@pytest.mark.parametrize("path", RECIPES, ids=IDS)
def test_a_shipped_recipe_keeps_to_the_schema(path: Path) -> None:
    assert errors(yaml.safe_load(path.read_text())) == []


@pytest.mark.parametrize("path", RECIPES, ids=IDS)
def test_a_shipped_recipe_names_the_schema_first(path: Path) -> None:
    head = path.read_text().splitlines()[0]
    assert head == f"# yaml-language-server: $schema={reference.SCHEMA.name}"


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
    tree = yaml.safe_load((reference.ROOT / "jobs" / "recipes" / "embedded.yaml").read_text())
    assert where in errors({**tree, **change})
