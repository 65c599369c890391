"""Preferences and demonstrations as they are published and exported: what a row of each format says."""

import json
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from pipeline.recipe.formats import formats
from pipeline.recipe.sources import ImportSource
from pipeline.traces.rows import Rows
from pipeline.traces.sources.imports import REWARD_KEY, ImportedFiles

from .conftest import read

USER = {"role": "user", "content": "Is it open?"}
YES, NO = {"role": "assistant", "content": "Until six."}, {"role": "assistant", "content": "Who knows."}


def section(uri: object = "x", preset: str | None = None, kind: Any = "pairs", **more: Any) -> ImportSource:
    kind = formats()[preset].kind if preset else kind
    declared = {"licence": "MIT", "consent": True, "day": date(2026, 1, 5)}
    return ImportSource.model_validate({"kind": kind, "uri": str(uri), "preset": preset, **declared, **more})


def imported(path: Path, *rows: dict[str, Any], preset: str | None = None, **more: Any) -> Rows:
    file = path / "rows.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return read(ImportedFiles(section(file, preset, **more), "imports/1/"))


def said(rows: Rows) -> list[tuple[list[str], list[tuple[str, float]]]]:
    """Each prompt with its answers and their rewards."""
    by_prompt: dict[str, list[tuple[str, float]]] = {}
    for trace in rows.traces:
        prompt = json.dumps([f"{message['role']}: {message['content']}" for message in trace.messages])
        by_prompt.setdefault(prompt, []).append((trace.completion, json.loads(trace.metadata)[REWARD_KEY]))
    return [(json.loads(prompt), answers) for prompt, answers in by_prompt.items()]


def vote(side: str, **more: Any) -> dict[str, Any]:
    return {"result": [{"type": "pairwise", "value": {"selected": side}}], **more}


TASK = {"data": {"prompt": "Is it open?", "answer1": "Until six.", "answer2": "Who knows."}}
FIELDS = {"prompt": "Is it open?", "response1": "Who knows.", "response2": "Until six."}
CASES = json.loads(Path(__file__).with_name("preferences.json").read_text(encoding="utf-8"))
"""A row of each format as it is published, with its prompt, answers and their rewards."""


def test_every_format_of_pairs_and_demonstrations_has_a_case() -> None:
    wanted = {name for name, each in formats().items() if each.kind in ("pairs", "demonstrations")}
    assert {case["preset"] for case in CASES} == wanted


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["preset"])
def test_a_row_of_a_known_format(tmp_path: Path, case: dict[str, Any]) -> None:
    preset, row, prompt = case["preset"], case["row"], case["prompt"]
    answers = [(text, reward) for text, reward in case["answers"]]
    rows = imported(tmp_path, row, preset=preset)
    assert (said(rows), rows.rejected) == ([(prompt, answers)], [])
    models = {"pairs": "imported", "demonstrations": "demonstrated"}
    assert {trace.model for trace in rows.traces} == {models[formats()[preset].kind]}
    assert len({trace.trace_id for trace in rows.traces}) == len(answers)
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "rows.parquet")
    assert said(read(ImportedFiles(section(tmp_path / "rows.parquet", preset), "imports/1/"))) == [(prompt, answers)]


@pytest.mark.parametrize(
    ("preset", "row", "why"),
    [
        ("arena", {"conversation_a": [USER, YES], "conversation_b": [USER, NO], "winner": "tie (bothbad)"}, "a tie"),
        ("arena", {"conversation_a": [USER, YES], "conversation_b": [USER, NO]}, "a tie"),
        ("helpsteer3", {"context": [USER], "response1": "a", "response2": "b", "overall_preference": 0}, "a tie"),
        ("helpsteer2", {"prompt": "Is it open?", "response": "Until six.", "helpfulness": None}, "a tie"),
        ("trl_unpaired", {"prompt": "Is it open?", "completion": "Until six.", "label": None}, "a tie"),
        ("label_studio_pairwise", {**TASK, "annotations": [vote("left"), vote("right")]}, "a tie"),
        ("label_studio_pairwise", {**TASK, "annotations": []}, "a tie"),
        ("argilla", {"fields": FIELDS, "responses": {}}, "a tie"),
        ("trl_preference", {"prompt": "Is it open?", "chosen": "Yes.", "rejected": "Yes."}, "its answers are the same"),
        ("openai_finetune_sft", {"messages": [USER, {**YES, "weight": 0}]}, "a tie"),
        (
            "ultrafeedback_binarized",
            {"prompt": "x", "chosen": [USER, YES], "rejected": [USER, NO], "score_chosen": 5.0, "score_rejected": 5.0},
            "a tie",
        ),
    ],
)
def test_a_row_without_a_side_is_left_out_by_name(tmp_path: Path, preset: str, row: dict[str, Any], why: str) -> None:
    rows = imported(tmp_path, row, preset=preset)
    ((reason, detail, day),) = [(each.reason, each.detail, each.day) for each in rows.rejected]
    assert (rows.traces, reason, day) == ([], "no_preference", "2026-01-05")
    assert detail.startswith(why)


def test_answers_to_different_prompts_are_no_pair(tmp_path: Path) -> None:
    other = {"role": "user", "content": "Is it far?"}
    row = {"conversation_a": [USER, YES, USER, YES], "conversation_b": [USER, NO, USER, YES], "winner": "model_a"}
    rows = imported(tmp_path, row, {**row, "conversation_b": [other, NO]}, preset="arena")
    assert [(each.line, each.reason, each.detail) for each in rows.rejected] == [
        (1, "unreadable", "its answers are to different prompts"),
        (2, "unreadable", "its answers are to different prompts"),
    ]


def test_an_answer_that_is_missing_is_counted(tmp_path: Path) -> None:
    rows = imported(tmp_path, {"prompt": "Hi", "chosen": "Hello.", "rejected": ""}, preset="trl_preference")
    assert said(rows) == [(["user: Hi"], [("Hello.", 1.0)])]
    assert [(each.reason, each.detail) for each in rows.rejected] == [("no_content", "no answer")]


def test_a_list_of_answers_has_a_list_of_ratings(tmp_path: Path) -> None:
    fields = {"prompt": "q", "answers": "responses", "rating": "stars"}
    row = {"q": "Hi", "responses": ["Hello.", "What?"], "stars": [5, 2]}
    rows = imported(tmp_path, row, {**row, "stars": [5]}, fields=fields, scale=[1, 5])
    assert said(rows) == [(["user: Hi"], [("Hello.", 1.0), ("What?", 0.25)])]
    assert [(each.line, each.reason) for each in rows.rejected] == [(2, "no_preference")]


def test_a_rating_that_is_not_on_the_scale_is_refused(tmp_path: Path) -> None:
    row = {"prompt": "Hi", "response": "Hello.", "helpfulness": 5}
    with pytest.raises(
        ValueError, match=r"1/rows.jsonl:1 has the rating 5, which is not on the scale from 0 to 4. Give"
    ):
        imported(tmp_path, row, preset="helpsteer2")


def test_what_a_row_says_of_itself_is_kept(tmp_path: Path) -> None:
    row = {"q": "2 + 2?", "a": "4", "who": "ann", "gold": 4, "meta": {REWARD_KEY: 0.0, "confidential": True}}
    fields = {"prompt": "q", "answer": "a", "user": "who", "reference": "gold", "metadata": "meta"}
    (trace,) = imported(tmp_path, row, kind="demonstrations", fields=fields).traces
    kept = {"confidential": True, "expected_answer": 4, "licence": "MIT", REWARD_KEY: 1.0}
    assert (trace.user_id, trace.line, json.loads(trace.metadata)) == ("ann", 1, kept)
    assert trace.trace_id == trace.observation_id == "imports/1/rows.jsonl:1"


def test_tools_of_a_fine_tuning_file_are_read(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "hours", "parameters": {"type": "object"}}}
    call = {"type": "function", "id": "c1", "function": {"name": "hours", "arguments": "{}"}}
    row = {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [call]}], "tools": [tool]}
    (trace,) = imported(tmp_path, row, preset="openai_finetune_sft").traces
    assert '"name":"hours"' in (trace.tools or "") and '"name":"hours"' in (trace.tool_calls or "")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"fields": {"prompt": "q", "chosen": "a"}}, "or fields: chosen and rejected, or answers and preferred"),
        ({"fields": {"answers": ["a", "b"], "preferred": "w"}}, "answers and preferred with its sides"),
        ({"fields": {"answers": "a", "rating": "r"}}, "answers and rating with its scale"),
        ({"fields": {"answers": "a", "rating": "r"}, "scale": [1, 1]}, r"scale is \[1.0, 1.0\]. Give the worst and"),
        ({"kind": "demonstrations", "fields": {"prompt": "q"}}, "or give preset, or fields: answer"),
        ({"preset": "alpaca"}, "there is no preset alpaca of kind pairs"),
        ({"preset": "hh", "consent": False}, "Input should be True"),
        ({"preset": "hh", "licence": ""}, "at least 1 character"),
        ({"preset": "hh", "day": None}, "valid date"),
        ({"preset": "hh", "name": "a/b"}, "match pattern"),
    ],
)
def test_what_a_section_has_to_declare(given: dict[str, Any], words: str) -> None:
    declared = {"kind": "pairs", "uri": "x", "licence": "MIT", "consent": True, "day": "2026-01-05"}
    with pytest.raises(ValidationError, match=words):
        ImportSource.model_validate({**declared, **given})


def test_another_meaning_of_the_same_file_is_read_again(tmp_path: Path) -> None:
    imported(tmp_path, {"prompt": "Hi", "response": "Hello.", "helpfulness": 4}, preset="helpsteer2")
    versions = {
        ImportedFiles(section(tmp_path / "rows.jsonl", "helpsteer2", **more), "imports/1/").parts()[0].version
        for more in ({}, {"scale": [0, 5]}, {"licence": "CC0"}, {"fields": {"rating": "coherence"}})
    }
    assert len(versions) == 4
