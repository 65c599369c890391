"""The stage over a governed table: provenance, what is remembered, and what a kill costs."""

import json
from pathlib import Path

import pytest

from pipeline.core.storage import Store
from pipeline.recipe.rewards import Rules
from pipeline.rewards.records import LABELS
from pipeline.selection.pairing import read_labels
from tests.pipeline.traces.conftest import score, write

from .conftest import Label, call, day_file, rows_of

pytestmark = pytest.mark.slow

RULES = Rules(min_chars=1, max_chars=200)
THUMBS = "scores/a.jsonl"


def test_every_label_says_where_it_comes_from(export: Path, label: Label) -> None:
    right, wrong, bare = call(1, "6 * 5.\n#### 30", "30"), call(2, "#### 31", "30"), call(3, "Hello there.")
    loved = call(4, "Bonjour.")
    day_file(export, 5, [right, wrong, bare, loved])
    write(export, THUMBS, [score(1, 4, 1.0), score(2, 2, 0.0)])
    labels = label(rules=RULES)
    rows = rows_of(labels)
    assert list(rows["t1"]) == LABELS.names
    assert [rows[f"t{n}"]["profile"] for n in (1, 2, 3, 4)] == ["verified", "verified", "judged", "rated"]
    assert rows["t1"]["final_reward"] == 1.0
    assert rows["t2"]["final_reward"] == pytest.approx(0.15 / 1.15)
    assert rows["t2"]["feedback"] == 0.25, "known, though it has no weight beside a verdict"
    assert (rows["t3"]["final_reward"], rows["t3"]["reason"]) == (None, "no_signal")
    assert rows["t4"]["final_reward"] > 0.7
    assert json.loads(rows["t4"]["weights"]).keys() == {"feedback", "latency"}
    assert [rows[f"t{n}"]["verifier"] for n in (1, 2, 3, 4)] == ["math", "math", None, None]
    assert rows["t1"]["verifier_version"] and rows["t1"]["answer"] == "30"
    assert (labels.labelled, labels.coverage) == (3, 0.75)
    assert labels.unlabelled == {"no_signal": 1}
    assert labels.outcomes == {"correct": 1, "wrong": 1, "no_reference": 2}
    assert sum(labels.histogram) == 3
    assert labels.components["correct"].count == 2


def test_a_trace_names_its_own_kind_of_check(export: Path, label: Label) -> None:
    schema = json.dumps({"type": "object", "required": ["city"]})
    rows = [
        call(1, '{"city": "Oslo"}', schema, metadata={"verifier": "json_schema"}),
        call(2, '{"town": "Oslo"}', schema, metadata={"verifier": "json_schema"}),
        call(3, "Oslo", "oslo", metadata={"verifier": "normalised"}),
        call(4, "Oslo", "oslo", metadata={"verifier": "divination"}),
        call(5, "Oslo", "oslo", metadata={"verifier": '"\\ud800"'}),
        call(6, "Oslo", "oslo", metadata={"verifier": '"exact"'}),
    ]
    day_file(export, 5, rows)
    labels = rows_of(label(rules=RULES))
    outcomes = [labels[f"t{n}"]["outcome"] for n in range(1, 7)]
    assert outcomes == ["correct", "wrong", "correct", "error", "error", "wrong"]
    assert labels["t4"]["final_reward"] is None


def test_only_what_is_new_or_changed_is_checked(export: Path, store: Store, label: Label) -> None:
    def stamps() -> dict[Path, int]:
        kept = (path for path in store.root.rglob("*") if path.suffix in (".json", ".jsonl", ".parquet"))
        return {path: path.stat().st_mtime_ns for path in kept}

    day_file(export, 5, [call(n, f"#### {n}/7", "1/7") for n in range(1, 5)])
    first = label()
    before = stamps()
    assert (first.checked, label()) == (4, first)
    assert before.items() <= stamps().items(), "labelling twice changes nothing"
    day_file(export, 6, [call(n, "#### 2/14", "1/7", day=6) for n in range(5, 8)])
    second = label()
    assert (second.checked, second.remembered, second.dataset.rows) == (3, 4, 7)
    changed = [call(1, "#### 1/7 ", "1/8"), *(call(n, f"#### {n}/7", "1/7") for n in range(2, 5))]
    day_file(export, 5, changed)
    third = label()
    assert (third.checked, third.remembered) == (1, 6)
    assert rows_of(third)["t1"]["outcome"] == "wrong"


def test_late_feedback_labels_anew_and_checks_nothing_again(export: Path, label: Label) -> None:
    day_file(export, 5, [call(1, "Hello."), call(2, "#### 3", "3")])
    first = label()
    assert rows_of(first)["t1"]["final_reward"] is None
    write(export, THUMBS, [score(1, 1, 1.0)])
    second = label()
    assert second.iteration != first.iteration
    assert rows_of(second)["t1"]["final_reward"] > 0.7
    assert (second.checked, second.remembered) == (0, 1)


def test_rows_with_calls_are_labelled_like_any_other(export: Path, label: Label) -> None:
    request = {"id": "c", "function": {"name": "refund", "arguments": '{"order": "A7"}'}}
    tool = {"type": "function", "function": {"name": "refund", "parameters": {"type": "object"}}}
    asked = [
        {"role": "user", "content": "Refund A7"},
        {"role": "assistant", "content": None, "tool_calls": [request]},
        {"role": "tool", "tool_call_id": "c", "content": "done"},
    ]
    by_name = {"role": "assistant", "content": "#### 30", "tool_calls": [request]}
    alone = {"role": "assistant", "content": None, "tool_calls": [request]}
    wanted, as_calls = json.dumps({"name": "refund", "arguments": {"order": "A7"}}), {"verifier": "calls"}
    searched = [{"type": "web_search_call"}, {"type": "message", "role": "assistant", "content": "#### 30"}]
    rows = [
        call(1, "#### 30", "30", input={"messages": asked, "tools": [tool]}),
        call(2, json.dumps(by_name), "30"),
        call(3, json.dumps(alone), wanted, metadata=as_calls),
        call(4, json.dumps(alone), wanted.replace("A7", "A8"), metadata=as_calls),
        call(5, json.dumps(searched), "30"),
    ]
    day_file(export, 5, rows)
    write(export, THUMBS, [score(1, 1, 1.0)])
    labels = label(rules=RULES)
    result = rows_of(labels)
    assert labels.unlabelled == {"unshowable_call": 1}, "of what the provider executed nobody knows the result"
    assert labels.outcomes == {"unshowable_call": 1, "correct": 3, "wrong": 1}
    assert [result[f"t{n}"]["correct"] for n in range(1, 6)] == [1.0, 1.0, 1.0, 0.0, None]
    offered, _, called, returned = json.loads(result["t1"]["prompt"])
    assert (offered["role"], json.loads(offered["content"])) == ("tools", [tool])
    assert json.loads(called["tool_calls"])[0]["function"] == request["function"], "the call is not an empty turn"
    assert (returned["role"], returned["tool_call_id"]) == ("tool", "call00000")
    block = '<tool_call>\n{"name": "refund", "arguments": {"order": "A7"}}\n</tool_call>'
    assert [result[f"t{n}"]["completion"] for n in (2, 3)] == [f"#### 30\n{block}", block]
    assert [row.trace_id for row in read_labels(labels.dataset)] == ["t1", "t2", "t3", "t4"]
