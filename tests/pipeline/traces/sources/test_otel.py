from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from pipeline.traces.rows import Rows, Trace
from pipeline.traces.sources.otel import Otel

from .conftest import read, reasons, write

START = 1767607201123456789
END = START + 1_500_000_000
ASKED = [{"role": "user", "parts": [{"type": "text", "content": "What is 1 + 1?"}]}]
ANSWERED = [{"role": "assistant", "parts": [{"type": "text", "content": "2"}], "finish_reason": "stop"}]
CALL = {"type": "tool_call", "id": "c", "name": "search", "arguments": {"q": "x"}}


def typed(value: Any) -> dict[str, Any]:
    """A value as OTLP writes it."""
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [typed(item) for item in value]}}
    if isinstance(value, dict):
        return {"kvlistValue": {"values": pairs(value)}}
    return {"stringValue": value}


def pairs(values: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": typed(value)} for key, value in values.items()]


def span(said: dict[str, Any], **changes: Any) -> dict[str, Any]:
    said = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", **said}
    ids = {"traceId": "5b8efff798038103d269b633813fc60c", "spanId": "eee19b7ec3c1b174", "name": "chat m"}
    times = {"startTimeUnixNano": str(START), "endTimeUnixNano": str(END)}
    return {**ids, **times, "attributes": pairs(said), **changes}


def request(*spans: Any, **resource: Any) -> dict[str, Any]:
    scope = {"scope": {"name": "app"}, "spans": list(spans)}
    return {"resourceSpans": [{"resource": {"attributes": pairs(resource)}, "scopeSpans": [scope]}]}


def rows_of(folder: Path, *requests: Any) -> Rows:
    write(folder, "spans.jsonl", list(requests))
    return read(Otel(str(folder)))


def one(folder: Path, *requests: Any) -> Trace:
    rows = rows_of(folder, *requests)
    assert rows.rejected == []
    (trace,) = rows.traces
    return trace


@pytest.mark.parametrize("form", [lambda value: value, json.dumps], ids=["structure", "text"])
def test_a_call_is_read(tmp_path: Path, form: Any) -> None:
    by_name = {
        "gen_ai.response.model": "m-2026",
        "gen_ai.system_instructions": form([{"type": "text", "content": "Be brief."}]),
        "gen_ai.input.messages": form(ASKED),
        "gen_ai.output.messages": form(
            [*ANSWERED, {"role": "assistant", "parts": [{"type": "text", "content": "no"}]}]
        ),
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.conversation.id": "s",
        "enduser.id": "u",
        "user_consent": True,
    }
    trace = one(tmp_path, request(span(by_name), region="eu"))
    assert trace.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is 1 + 1?"},
    ]
    assert (trace.completion, trace.finish_reason, trace.model) == ("2", "stop", "m-2026")
    assert (trace.input_tokens, trace.output_tokens, trace.latency_s) == (7, 3, 1.5)
    assert (trace.user_id, trace.session_id) == ("u", "s")
    assert (trace.trace_id, trace.observation_id) == ("5b8efff798038103d269b633813fc60c", "eee19b7ec3c1b174")
    assert trace.timestamp == datetime(2026, 1, 5, 10, 0, 1, 123456)
    assert json.loads(trace.metadata) == {"region": "eu", "enduser.id": "u", "user_consent": True}
    assert (trace.level, trace.error, trace.has_payload) == ("DEFAULT", None, False)


def test_otel_keeps_tool_calls_and_drops_reasoning(tmp_path: Path) -> None:
    asked = [
        *ASKED,
        {"role": "assistant", "parts": [{"type": "reasoning", "content": "hm"}, CALL]},
        {"role": "user", "parts": [{"type": "tool_call_response", "id": "c", "response": {"found": 2}}]},
    ]
    trace = one(tmp_path, request(span({"gen_ai.input.messages": asked, "gen_ai.output.messages": ANSWERED})))
    assert trace.messages[1]["content"] == ""
    call = {"id": "c", "type": "function", "function": {"name": "search", "arguments": '{"q":"x"}'}}
    assert json.loads(trace.messages[1]["tool_calls"]) == [call]
    assert trace.messages[2] == {"role": "tool", "content": '{"found":2}', "tool_call_id": "c"}


@pytest.mark.parametrize("kind", ["blob", "uri", "file"])
def test_a_part_that_is_not_text_is_reported(tmp_path: Path, kind: str) -> None:
    asked = [{"role": "user", "parts": [{"type": "text", "content": "See"}, {"type": kind, "content": "aGk="}]}]
    assert one(tmp_path, request(span({"gen_ai.input.messages": asked}))).has_payload


def event(name: str, **attributes: Any) -> dict[str, Any]:
    return {"name": name, "timeUnixNano": str(START), "attributes": pairs(attributes)}


OLDER: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
    (
        {},
        [
            event("gen_ai.user.message", content="What is 1 + 1?"),
            event("gen_ai.choice", finish_reason="stop", message='{"role": "assistant", "content": "2"}'),
        ],
    ),
    (
        {},
        [
            event("gen_ai.user.message", **{"gen_ai.event.content": '{"content": "What is 1 + 1?"}'}),
            event(
                "gen_ai.choice", **{"gen_ai.event.content": '{"finish_reason": "stop", "message": {"content": "2"}}'}
            ),
        ],
    ),
    (
        {},
        [
            event("gen_ai.content.prompt", **{"gen_ai.prompt": '[{"role": "user", "content": "What is 1 + 1?"}]'}),
            event(
                "gen_ai.content.completion",
                **{"gen_ai.completion": '[{"role": "assistant", "content": "2", "finish_reason": "stop"}]'},
            ),
        ],
    ),
    (
        {},
        [
            event(
                "gen_ai.client.inference.operation.details",
                **{"gen_ai.input.messages": ASKED, "gen_ai.output.messages": ANSWERED},
            )
        ],
    ),
    ({"gen_ai.prompt": "What is 1 + 1?", "gen_ai.completion": "2", "gen_ai.response.finish_reasons": ["stop"]}, []),
    (
        {
            "gen_ai.prompt.0.role": "user",
            "gen_ai.prompt.0.content": "What is 1 + 1?",
            "gen_ai.completion.0.role": "assistant",
            "gen_ai.completion.0.content": "2",
            "gen_ai.completion.0.finish_reason": "stop",
        },
        [],
    ),
]


@pytest.mark.parametrize(("attributes", "events"), OLDER)
def test_older_shapes_are_read(tmp_path: Path, attributes: dict[str, Any], events: list[Any]) -> None:
    trace = one(tmp_path, request(span(attributes, events=events)))
    assert trace.messages == [{"role": "user", "content": "What is 1 + 1?"}]
    assert (trace.completion, trace.finish_reason) == ("2", "stop")


OTHERS: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
    (
        {
            "openinference.span.kind": "LLM",
            "llm.input_messages.0.message.role": "user",
            "llm.input_messages.0.message.contents.0.message_content.type": "text",
            "llm.input_messages.0.message.contents.0.message_content.text": "What is 1 + 1?",
            "llm.output_messages.0.message.role": "assistant",
            "llm.output_messages.0.message.content": "2",
        },
        [],
    ),
    (
        {
            "ai.prompt.messages": '[{"role": "user", "content": [{"type": "text", "text": "What is 1 + 1?"}]}]',
            "ai.response.text": "2",
        },
        [],
    ),
    ({"gen_ai.prompt.0.content": '[{"type": "text", "text": "What is 1 + 1?"}]', "gen_ai.completion": "2"}, []),
    ({"events": '[{"event.name": "gen_ai.user.message", "role": "user", "content": "What is 1 + 1?"}, '
      '{"event.name": "gen_ai.choice", "index": 0, "message": {"role": "assistant", "content": "2"}}]'}, []),
    ({}, [event("gen_ai.user.message", content='[{"text": "What is 1 + 1?"}]'),
          event("gen_ai.choice", message='[{"text": "2"}]', finish_reason="end_turn")]),
]  # fmt: skip


@pytest.mark.parametrize(("attributes", "events"), OTHERS)
def test_other_conventions_are_read(tmp_path: Path, attributes: dict[str, Any], events: list[Any]) -> None:
    trace = one(tmp_path, request(span(attributes, events=events) if events else span(attributes)))
    assert trace.messages == [{"role": "user", "content": "What is 1 + 1?"}]
    assert (trace.completion, trace.tool_calls, trace.unreadable) == ("2", None, None)


def test_the_arguments_of_a_tool_are_not_the_answer(tmp_path: Path) -> None:
    calls = '[{"toolCallType": "function", "toolCallId": "c", "toolName": "f", "args": "{}"}]'
    numbered = "llm.output_messages.0.message.tool_calls.0.tool_call.function"
    for value in (
        {"ai.prompt.messages": "Hi", "ai.response.toolCalls": calls},
        {"input.value": "Hi", f"{numbered}.name": "f", f"{numbered}.arguments": "{}"},
    ):
        trace = one(tmp_path, request(span(value)))
        assert (trace.completion, len(json.loads(trace.tool_calls or "[]"))) == ("", 1)


def test_a_part_that_nobody_knows_is_unreadable(tmp_path: Path) -> None:
    by_name = {
        "gen_ai.input.messages": ASKED,
        "gen_ai.output.messages": [{"role": "assistant", "parts": [{"type": "new"}]}],
    }
    assert one(tmp_path, request(span(by_name))).unreadable == "output: {type:str}"


def test_numbered_tool_calls_are_kept(tmp_path: Path) -> None:
    by_name = {
        "gen_ai.prompt.1.role": "assistant",
        "gen_ai.prompt.1.tool_calls.0.name": "search",
        "gen_ai.prompt.1.tool_calls.0.arguments": "{}",
        "gen_ai.prompt.0.content": "Hi",
        "gen_ai.completion.0.content": "2",
    }
    trace = one(tmp_path, request(span(by_name)))
    assert trace.messages[0] == {"role": "user", "content": "Hi"}
    assert json.loads(trace.messages[1]["tool_calls"]) == [
        {"type": "function", "function": {"name": "search", "arguments": "{}"}}
    ]


NUMBERED = {"gen_ai.prompt.0.content": "Hi", "gen_ai.completion.0.content": "2"}
CALLED = "gen_ai.completion.0.tool_calls"
SHOWN = {"llm.input_messages.0.message.content": "Hi", "llm.output_messages.0.message.content": "2"}
PART = "llm.input_messages.0.message.contents"


@pytest.mark.parametrize(
    "incomplete",
    [
        span(NUMBERED, droppedAttributesCount=2),
        span(NUMBERED, droppedEventsCount=1),
        span(NUMBERED, events=[{"name": "e", "attributes": [], "droppedAttributesCount": 1}]),
        span({**NUMBERED, "gen_ai.prompt.2.content": "And then?"}),
        span({"gen_ai.prompt.1.content": "Hi", "gen_ai.completion.0.content": "2"}),
        span({**NUMBERED, f"{CALLED}.1.name": "f", f"{CALLED}.1.arguments": "{}"}),
        span({**SHOWN, "llm.input_messages.2.message.content": "And then?"}),
        span({**SHOWN, f"{PART}.0.message_content.text": "a", f"{PART}.2.message_content.text": "c"}),
        span({**SHOWN, "llm.output_messages.2.message.content": "3"}),
    ],
)
def test_a_call_of_which_a_part_was_not_recorded_is_unreadable(tmp_path: Path, incomplete: Any) -> None:
    trace = one(tmp_path, request(incomplete))
    assert trace.unreadable
    failed = one(tmp_path / "failed", request({**incomplete, "status": {"code": 2}}))
    assert (failed.level, failed.unreadable) == ("ERROR", None)


def test_a_failed_call_is_an_error(tmp_path: Path) -> None:
    trace = one(tmp_path, request(span({"error.type": "timeout"}, status={"code": 2, "message": ""})))
    assert (trace.level, trace.error) == ("ERROR", "timeout")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (span({}), "no_content:1:2026-01-05"),
        (span({"gen_ai.input.messages": "[]", "gen_ai.output.messages": ""}), "no_content:1:2026-01-05"),
        (span({"gen_ai.operation.name": "execute_tool"}), "not_generation:1:2026-01-05"),
        (span({}, attributes=[]), "not_generation:1:2026-01-05"),
        (span({}, traceId=None), "schema:1:None"),
        (span({}, startTimeUnixNano="soon"), "schema:1:None"),
        (span({}, startTimeUnixNano=0), "schema:1:None"),
        (span({}, startTimeUnixNano=10**40), "schema:1:None"),
        (span({"gen_ai.usage.input_tokens": "many", "gen_ai.prompt": "Hi"}), "schema:1:2026-01-05"),
        (span({}, attributes=["x"]), "schema:1:2026-01-05"),
        ("a span", "schema:1:None"),
    ],
)
def test_a_span_that_is_no_trace_is_counted(tmp_path: Path, row: Any, reason: str) -> None:
    rows = rows_of(tmp_path, request(row, span({"gen_ai.input.messages": ASKED})))
    assert reasons(rows) == [reason]
    assert [t.line for t in rows.traces] == [2]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "malformed:2:None"),
        ("{}", "schema:2:None"),
        ('{"resourceMetrics": []}', "schema:2:None"),
        ('{"resourceSpans": ' + "[" * 10_000, "schema:2:None"),
        ('{"x": ' + "[" * 10_000, "malformed:2:None"),
    ],
)
def test_a_line_that_is_no_request_is_counted(tmp_path: Path, line: str, reason: str) -> None:
    good = request(span({"gen_ai.input.messages": ASKED}))
    rows = rows_of(tmp_path, good, line, good)
    assert reasons(rows) == [reason]
    assert [t.line for t in rows.traces] == [1, 3]


def test_one_request_may_be_a_file_of_many_lines(tmp_path: Path) -> None:
    text = json.dumps(request(span({"gen_ai.input.messages": ASKED}), span({})), indent=2)
    write(tmp_path, "spans.json", [text])
    write(tmp_path, "torn.json", [text[:200]])
    rows = read(Otel(str(tmp_path)))
    assert (len(rows.traces), reasons(rows)) == (1, ["no_content:2:2026-01-05", "malformed:1:None"])


def test_a_missing_source_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"traces\.source\.uri.*\.$"):
        Otel(str(tmp_path)).parts()
