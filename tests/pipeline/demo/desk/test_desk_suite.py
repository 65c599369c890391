"""The desk's held-out suite: its facts, and that the evaluation reads it as the demo wrote it."""

import json
from pathlib import Path
from typing import Any

from evals.suites import suite
from pipeline.core.storage import Store
from pipeline.demo.desk.requests import is_held_out, read_request
from pipeline.demo.suite import ensure_suite, suite_text
from pipeline.recipe.suites import preset_suite


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in suite_text(preset_suite("desk"), 11).splitlines()]


def of_call(row: dict[str, Any]) -> bool:
    return row["check"] == "calls"


def test_an_item_that_shows_its_fact_asks_for_a_held_out_one() -> None:
    shown = [row for row in rows() if not of_call(row)]
    for row in shown:
        request = read_request(row["messages"])
        assert request is not None and request.shown
        assert is_held_out(*request.fact)
        assert (row["reference"], row["check"]) == (request.fact.value, "contains")
        assert row["cluster"] == "/".join(request.fact)
    assert {row["slice"] for row in shown} == {"carrier", "day", "price", "result", "second"}
    assert len({row["cluster"] for row in shown}) > 150


def test_the_evaluation_reads_the_desks_suite(tmp_path: Path) -> None:
    store, section = Store(tmp_path), preset_suite("desk", items=40)
    ensure_suite(store, section, 5)
    read = suite(store, section, 5)
    assert (read.name, len(read.items)) == ("desk", 40)
    assert {item.check for item in read.items} == {"calls", "contains"}
