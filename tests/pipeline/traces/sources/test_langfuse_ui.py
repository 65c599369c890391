from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.traces.sources.langfuse_ui import LangfuseUi

from .conftest import read, reasons, write

REAL_TRACES = {
    "autogen-2025-06-06.json": ("gpt-4o", 41, 3, 0.628, "user: Say 'Hello World!'", "Hello World!", 0),
    "google-gemini-2025-08-01.json": (
        "gemini-2.5-flash",
        6,
        2055,
        12.032,
        "What is Langfuse?",
        "**Langfuse** is an",
        2,
    ),
    "langgraph-2025-08-22.json": ("gpt-4o-2024-08-06", 108, 51, 1.743, '"Web-Search"', 'The search for "example"', 2),
    "llamaindex-2025-06-05.json": ("gpt-4o", 13, 81, 2.776, "What is Langfuse?", "Langfuse is a tool", 0),
    "openai-agents-2025-09-30.json": ("gpt-4.1-2025-04-14", 85, 29, 1.15, "Tokyo is sunny.", "The weather in Tokyo", 2),
    "openai-assistants-2024-05-29.json": ("gpt-4", 49, 40, None, "`3x + 11 = 14`", "Sure, first subtract 11", 0),
}


@pytest.mark.shared
def test_six_real_traces_are_read(shared_data: Path) -> None:
    source = LangfuseUi(str(shared_data / "langfuse-traces"))
    seen = 0
    for part in source.parts():
        rows = read(source, part)
        seen += len(rows.traces) + len(rows.rejected)
        last = max(rows.traces, key=lambda t: t.timestamp)
        model, tokens_in, tokens_out, latency_s, asked, answered, scores = REAL_TRACES[part.name]
        assert (last.model, last.input_tokens, last.output_tokens) == (model, tokens_in, tokens_out)
        assert (last.latency_s, len(rows.scores)) == (latency_s, scores)
        assert asked in json.dumps(last.messages).replace('\\"', '"')
        assert last.completion.startswith(answered)
        assert {r.reason for r in rows.rejected} <= {"not_generation"}
        assert not [t for t in rows.traces if t.unreadable or "{" in t.completion]
        # Beside an answer, frameworks log a call of a tool: it has no text, and its arguments are not the answer.
        assert [bool(t.tool_calls) for t in rows.traces] == [not t.completion for t in rows.traces]
    assert seen == 23


UI = '{"trace": {"id": "t", "timestamp": "2026-01-07T00:00:00Z"}, "observations": %s}'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "malformed:1:None"),
        (UI % ("[" * 10_000), "malformed:1:None"),
        ("{}", "schema:1:None"),
        (UI % "[]", "not_generation:1:2026-01-07"),
        (UI % "[3]", "schema:1:None"),
        (UI % '[{"id": "o", "type": "GENERATION"}]', "schema:1:None"),
    ],
)
def test_a_file_that_is_no_ui_trace_is_one_counted_row(tmp_path: Path, text: str, reason: str) -> None:
    write(tmp_path, "2026-01-05.json", [text])
    write(tmp_path, "README.md", ["beside the traces"])
    assert reasons(read(LangfuseUi(str(tmp_path)))) == [reason]


def test_a_file_that_vanished_since_its_listing_is_counted(tmp_path: Path) -> None:
    path = write(tmp_path, "t.json", [UI % "[]"])
    source = LangfuseUi(str(tmp_path))
    parts = source.parts()
    path.unlink()
    assert reasons(read(source, parts[0])) == ["truncated_file:1:None"]


def test_one_file_is_a_source_too(tmp_path: Path) -> None:
    path = write(tmp_path, "t.json", [UI % "[]"])
    source = LangfuseUi(str(path))
    assert [part.name for part in source.parts()] == ["t.json"]
    assert reasons(read(source)) == ["not_generation:1:2026-01-07"]


def test_a_missing_source_says_what_to_do(tmp_path: Path) -> None:
    for uri in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(ValueError, match=r"traces\.source\.uri.*\.$"):
            LangfuseUi(str(uri)).parts()


CALL = {"id": "o", "input": "Hi", "type": "GENERATION", "startTime": "2026-01-05T00:00:00Z"}


@pytest.mark.parametrize(("own", "word"), [({"user_consent": False}, False), ({}, True)])
def test_what_a_call_says_of_itself_wins_over_its_ui_trace(tmp_path: Path, own: dict[str, bool], word: bool) -> None:
    trace = {"id": "t", "timestamp": "2026-01-05T00:00:00Z", "metadata": '{"user_consent": true}'}
    write(tmp_path, "t.json", [{"trace": trace, "observations": [{**CALL, "metadata": own}]}])
    assert [json.loads(t.metadata) for t in read(LangfuseUi(str(tmp_path))).traces] == [{"user_consent": word}]


@pytest.mark.parametrize("said", [2.5, 2500, None, "fast"])
def test_ui_latency_is_end_less_start(tmp_path: Path, said: object) -> None:
    trace = {"id": "t", "timestamp": "2026-01-05T00:00:00Z"}
    ended = {**CALL, "latency": said, "endTime": "2026-01-05T00:00:02.500Z"}
    write(tmp_path, "t.json", [{"trace": trace, "observations": [ended, {**CALL, "id": "p", "latency": said}]}])
    assert [t.latency_s for t in read(LangfuseUi(str(tmp_path))).traces] == [2.5, None]


def test_messages_of_the_span_are_read_from_the_metadata(tmp_path: Path) -> None:
    trace = {"id": "t", "timestamp": "2026-01-05T00:00:00Z"}
    by_name = {"llm.output_messages.0.message.content": "Yes", "llm.output_messages.0.message.role": "assistant"}
    for form in (by_name, json.dumps(by_name)):
        write(tmp_path, "t.json", [{"trace": trace, "observations": [{**CALL, "metadata": {"attributes": form}}]}])
        assert [t.completion for t in read(LangfuseUi(str(tmp_path))).traces] == ["Yes"]


def test_scores_of_the_ui_trace_are_read(tmp_path: Path) -> None:
    by_name = {"id": "a", "name": "thumb", "value": 1, "observationId": "o", "updatedAt": "2026-01-05T00:02:00Z"}
    trace = {
        "id": "t",
        "timestamp": "2026-01-05T00:00:00Z",
        "scores": [by_name, {"id": "b", "name": "stars", "value": 4}],
    }
    write(tmp_path, "t.json", [{"trace": trace, "observations": [CALL]}])
    scores = [(s.id, s.trace_id, s.observation_id, s.name, s.value) for s in read(LangfuseUi(str(tmp_path))).scores]
    assert scores == [("a", "t", "o", "thumb", 1.0), ("b", "t", None, "stars", 4.0)]
