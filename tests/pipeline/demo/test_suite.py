"""The embedded suite's file: fixed, and put right where somebody changed it."""

import hashlib
import json
from pathlib import Path
from typing import Any

from pipeline.core.storage import Store
from pipeline.demo.desk.requests import is_held_out, read_request
from pipeline.demo.suite import ensure_suite, suite_text
from pipeline.recipe.suites import preset_suite


def test_the_suite_of_the_embedded_recipe_is_the_one_it_was() -> None:
    """Its figures in the documents are of these items: another draw is another suite."""
    rows = [json.loads(line) for line in suite_text(preset_suite("arithmetic", items=1000), 11).splitlines()]
    assert len(rows) == 1000
    pinned = [[row[key] for key in ("id", "cluster", "messages", "reference", "slice")] for row in rows]
    digest = hashlib.sha256(json.dumps(pinned).encode()).hexdigest()
    assert digest == "bbc783fc30b93b5a55cd80748a02e882482e8547a6bd64f9358c3465c130467e"


def test_a_draw_is_fixed_and_grows_at_its_end() -> None:
    assert suite_text(preset_suite("arithmetic", items=80), 3).startswith(
        suite_text(preset_suite("arithmetic", items=50), 3)
    )
    assert suite_text(preset_suite("arithmetic", items=50), 3) != suite_text(preset_suite("arithmetic", items=50), 4)


def test_the_file_is_written_once_and_put_right(tmp_path: Path) -> None:
    store, section = Store(tmp_path), preset_suite("arithmetic", items=40)
    path = ensure_suite(store, section, 5)
    assert path.read_text() == suite_text(preset_suite("arithmetic", items=40), 5)
    written = path.stat().st_mtime_ns
    assert ensure_suite(store, section, 5).stat().st_mtime_ns == written
    path.write_text(path.read_text()[:-9])
    assert ensure_suite(store, section, 5).read_text() == suite_text(preset_suite("arithmetic", items=40), 5)
    assert ensure_suite(store, section, 6) != path


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
