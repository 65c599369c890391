"""The desk's held-out suite: its facts, its checks, and that the evaluation reads it as the demo wrote it."""

import json
from pathlib import Path

from evals.suites import suite
from pipeline.demo.desk.answers import FILLERS
from pipeline.demo.desk.requests import is_held_out, read_request
from pipeline.demo.suite import ensure_suite, main, suite_text
from pipeline.recipe.suites import DeskSuite
from pipeline.storage import Store


def test_every_item_asks_for_a_held_out_fact() -> None:
    rows = [json.loads(line) for line in suite_text(DeskSuite(), 11).splitlines()]
    assert len(rows) == 400
    for row in rows:
        request = read_request(row["messages"])
        assert request is not None
        assert is_held_out(*request.fact)
        assert (row["reference"], row["check"]) == (request.fact.value, "contains")
        assert (row["slice"], row["cluster"]) == (request.attribute, "/".join(request.fact))
    assert {row["slice"] for row in rows} == {"carrier", "day", "price"}
    assert len({row["cluster"] for row in rows}) > 200


def test_a_draw_of_the_desk_is_fixed_and_grows_at_its_end() -> None:
    assert suite_text(DeskSuite(items=80), 3).startswith(suite_text(DeskSuite(items=50), 3))
    assert suite_text(DeskSuite(items=50), 3) != suite_text(DeskSuite(items=50), 4)


def test_the_evaluation_reads_the_desks_suite(tmp_path: Path) -> None:
    store, section = Store(tmp_path), DeskSuite(items=40)
    path = ensure_suite(store, section, 5)
    read = suite(store, section, 5)
    assert (read.name, len(read.items), read.items[0].check) == ("desk", 40, "contains")
    path.unlink()
    main([str(path), "--seed", "5", "--items", "40", "--kind", "desk"])
    assert suite(store, section, 5) == read


def test_no_item_shows_words_that_traffic_repeats() -> None:
    """Contamination counts 13 words that a trace and an item have in common; a filler alone has as many."""
    rows = [json.loads(line) for line in suite_text(DeskSuite(), 11).splitlines()]
    assert any(len(row["messages"]) > 2 for row in rows)
    assert not [row["id"] for row in rows if any(filler in json.dumps(row["messages"]) for filler in FILLERS)]
