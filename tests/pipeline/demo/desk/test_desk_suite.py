"""The desk's held-out suite: its facts, its checks, and that the evaluation reads it as the demo wrote it."""

import json
from pathlib import Path
from typing import Any

from evals.suites import suite
from pipeline.core.conversation import TOOLS
from pipeline.core.storage import Store
from pipeline.demo.desk.answers import FILLERS
from pipeline.demo.desk.conversation import LOOKUP
from pipeline.demo.desk.requests import is_held_out, read_request
from pipeline.demo.desk.tool import call_text
from pipeline.demo.suite import ensure_suite, main, suite_text
from pipeline.recipe.suites import preset_suite
from pipeline.rewards.verifiers.outcome import Outcome
from pipeline.rewards.verifiers.structured import same_calls


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


def test_an_item_that_has_to_be_looked_up_wants_the_call() -> None:
    called = [row for row in rows() if of_call(row)]
    assert 60 < len(called) < 100
    for row in called:
        request = read_request(row["messages"])
        assert request is not None and not request.shown
        assert is_held_out(request.order, request.attribute, LOOKUP)
        assert (row["slice"], row["messages"][0]["role"]) == ("call", TOOLS)
        right, other = call_text(request.order), call_text("K10" if request.order != "K10" else "K11")
        assert same_calls(right, row["reference"]).outcome is Outcome.correct
        assert same_calls(other, row["reference"]).outcome is Outcome.wrong
        assert same_calls("Order K10 comes today.", row["reference"]).outcome is Outcome.no_answer
    assert len({row["cluster"] for row in called}) >= 20


def test_the_evaluation_reads_the_desks_suite(tmp_path: Path) -> None:
    store, section = Store(tmp_path), preset_suite("desk", items=40)
    path = ensure_suite(store, section, 5)
    read = suite(store, section, 5)
    assert (read.name, len(read.items)) == ("desk", 40)
    assert {item.check for item in read.items} == {"calls", "contains"}
    path.unlink()
    main([str(path), "--seed", "5", "--items", "40", "--preset", "desk"])
    assert suite(store, section, 5) == read


def test_no_item_shows_words_that_traffic_repeats() -> None:
    """Contamination counts 13 words that a trace and an item have in common; a filler alone has as many."""
    assert any(row["slice"] == "second" for row in rows())
    assert not [row["id"] for row in rows() if any(filler in json.dumps(row["messages"]) for filler in FILLERS)]
