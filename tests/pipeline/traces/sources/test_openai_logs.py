from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from pipeline.traces.rows import Rows, Trace
from pipeline.traces.sources.openai_logs import OpenAiLogs

from .conftest import read, reasons, write

ASKED = [{"role": "user", "content": "What is 1 + 1?"}]
REQUEST = {"model": "m", "messages": ASKED, "user": "u", "metadata": {"user_consent": "true"}}
CHOICE = {"index": 0, "message": {"role": "assistant", "content": "2", "refusal": None}, "finish_reason": "stop"}
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
RESPONSE = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1767607201, "model": "m-2026"}
RESPONSE |= {"choices": [CHOICE, {**CHOICE, "message": {"content": "no"}}], "usage": USAGE}


def rows_of(folder: Path, *rows: Any) -> Rows:
    write(folder, "calls.jsonl", list(rows))
    return read(OpenAiLogs(str(folder)))


def one(folder: Path, row: Any) -> Trace:
    rows = rows_of(folder, row)
    assert rows.rejected == []
    (trace,) = rows.traces
    return trace


@pytest.mark.parametrize(
    "row",
    [
        {"request": REQUEST, "response": RESPONSE},
        {"request": json.dumps(REQUEST), "response": json.dumps(RESPONSE)},
        {"custom_id": "c", "method": "POST", "body": REQUEST, "response": {"status_code": 200, "body": RESPONSE}},
        {"request": {"method": "POST", "body": REQUEST}, "response": RESPONSE, "error": None},
        {**REQUEST, **RESPONSE},
    ],
)
def test_a_call_is_read(tmp_path: Path, row: Any) -> None:
    trace = one(tmp_path, row)
    assert trace.messages == ASKED
    assert (trace.completion, trace.finish_reason, trace.model) == ("2", "stop", "m-2026")
    assert (trace.input_tokens, trace.output_tokens, trace.user_id) == (7, 3, "u")
    assert trace.trace_id.startswith("chatcmpl-1-") and trace.timestamp == datetime(2026, 1, 5, 10, 0, 1)
    assert (trace.level, trace.error, trace.metadata) == ("DEFAULT", None, '{"user_consent":"true"}')


@pytest.mark.parametrize("own", [{"request_id": "r"}, {"id": "r"}, {"request_id": "r", "id": "x"}, {"custom_id": "c"}])
def test_ids_of_responses_that_come_again_make_rows_of_their_own(tmp_path: Path, own: dict[str, str]) -> None:
    lines = [
        {
            **{key: f"{value}-{n}" if key == "request_id" or len(own) == 1 else value for key, value in own.items()},
            "request": {**REQUEST, "messages": [{"role": "user", "content": f"What is {n} + 1?"}]},
            "response": RESPONSE,
        }
        for n in range(2)
    ]
    ids = [trace.trace_id for trace in rows_of(tmp_path, *lines).traces]
    assert len(set(ids)) == 2
    assert ids == ["r-0", "r-1"] or "custom_id" in own
    assert ids == [trace.trace_id for trace in rows_of(tmp_path, *lines).traces]


def test_the_tools_that_a_request_offers_are_kept(tmp_path: Path) -> None:
    inner = {"name": "lookup", "parameters": {"type": "object"}}
    tool = {"type": "function", "function": inner}
    older, newer = {**REQUEST, "functions": [inner]}, {**REQUEST, "tools": [tool]}
    for number, request in enumerate((older, newer)):
        trace = one(tmp_path / str(number), {"request": request, "response": RESPONSE})
        assert trace.messages == ASKED and json.loads(trace.tools or "") == [tool]
    assert one(tmp_path / "none", {"request": {**REQUEST, "tools": []}, "response": RESPONSE}).tools is None


def test_the_responses_api_is_read(tmp_path: Path) -> None:
    by_name = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "2"}]}
    response = {"id": "resp_1", "created_at": 1767607201.5, "model": "m", "output": [{"type": "reasoning"}, by_name]}
    response |= {
        "usage": {"input_tokens": 7, "output_tokens": 3},
        "incomplete_details": {"reason": "max_output_tokens"},
    }
    request = {"model": "m", "instructions": "Be brief.", "input": "What is 1 + 1?"}
    trace = one(tmp_path, {"request": request, "response": response})
    assert trace.messages == [{"role": "system", "content": "Be brief."}, *ASKED]
    assert (trace.completion, trace.finish_reason, trace.input_tokens) == ("2", "max_output_tokens", 7)
    assert trace.timestamp == datetime(2026, 1, 5, 10, 0, 1, 500000)
    cut = {key: value for key, value in response.items() if key != "incomplete_details"}
    cut |= {"object": "response", "status": "in_progress"}
    assert one(tmp_path / "cut", {"request": request, "response": cut}).finish_reason == "in_progress"


def test_rules_beside_the_messages_are_of_the_prompt(tmp_path: Path) -> None:
    trace = one(tmp_path, {"request": {**REQUEST, "system": "Be brief."}, "response": RESPONSE})
    assert trace.messages == [{"role": "system", "content": "Be brief."}, *ASKED]


def test_tool_calls_are_kept(tmp_path: Path) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "search", "arguments": '{"q": "x"}'}}
    asked = [*ASKED, {"role": "assistant", "content": None, "tool_calls": [call]}]
    asked += [{"role": "tool", "tool_call_id": "c", "content": "found"}]
    trace = one(tmp_path, {"request": {**REQUEST, "messages": asked}, "response": RESPONSE})
    assert json.loads(trace.messages[1]["tool_calls"]) == [call]
    assert trace.messages[2] == {"role": "tool", "content": "found", "tool_call_id": "c"}


def test_what_the_line_says_beside_the_call_is_metadata(tmp_path: Path) -> None:
    row = {"request": REQUEST, "response": RESPONSE, "region": "eu", "user_consent": "false", "latency_ms": 1500}
    trace = one(tmp_path, {**row, "session_id": "s"})
    assert json.loads(trace.metadata) == {"user_consent": "true", "region": "eu", "latency_ms": 1500}
    assert (trace.latency_s, trace.session_id) == (1.5, "s")
    trace = one(tmp_path, {**row, "metadata": {"user_consent": False}})
    assert json.loads(trace.metadata)["user_consent"] is False


def test_completions_are_read_and_latency_is_end_less_start(tmp_path: Path) -> None:
    times = {"start_time": 1767607201.0, "end_time": 1767607202.5, "latency_ms": 7}
    response = {**RESPONSE, "choices": [{"text": "2", "index": 0, "finish_reason": "stop"}]}
    trace = one(tmp_path, {"request": {"model": "m", "prompt": "What is 1 + 1?"}, "response": response, **times})
    assert (trace.messages, trace.completion, trace.latency_s) == (ASKED, "2", 1.5)


@pytest.mark.parametrize(
    ("request_", "output"),
    [
        ({"model": "m", "input": "Hi", "previous_response_id": "r"}, [{"type": "message", "content": "Yes"}]),
        ({"model": "m", "input": "Hi", "conversation": "c"}, [{"type": "message", "content": "Yes"}]),
        ({"model": "m", "prompt": "a = ", "suffix": " + 1"}, [{"type": "message", "content": "Yes"}]),
        ({"model": "m", "prompt": "Hi", "echo": True}, [{"type": "message", "content": "Hi Yes"}]),
        ({"model": "m", "input": "Hi"}, [{"type": "novel_thing", "payload": "secret"}]),
        ({"model": "m", "input": [{"type": "compaction", "encrypted_content": "x"}, *ASKED]}, []),
    ],
)
def test_a_conversation_that_is_not_all_there_is_unreadable(tmp_path: Path, request_: Any, output: Any) -> None:
    response = {"id": "r2", "created_at": 1767607201, "model": "m", "output": output}
    trace = one(tmp_path, {"request": request_, "response": response})
    assert trace.unreadable and (trace.messages, trace.completion) != (ASKED, "Yes")


@pytest.mark.parametrize(
    "failed",
    [
        {"response": {"error": {"message": "overloaded", "code": 529}}},
        {"response": {"status_code": 500, "body": {"error": {"message": "overloaded"}}}},
        {"response": None, "error": "overloaded"},
    ],
)
def test_a_failed_call_is_an_error_with_a_name_of_its_own(tmp_path: Path, failed: dict[str, Any]) -> None:
    row = {"request": REQUEST, "timestamp": "2026-01-05T10:00:01Z", **failed}
    trace = one(tmp_path, row)
    assert (trace.level, trace.error, trace.completion) == ("ERROR", "overloaded", "")
    assert len(trace.trace_id) == 32
    assert trace.trace_id == one(tmp_path, row).trace_id


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("{", "malformed:2:None"),
        ('{"a": ' + "[" * 10_000, "malformed:2:None"),
        ('{"created": NaN}', "malformed:2:None"),
        ("[]", "schema:2:None"),
        ("{}", "schema:2:None"),
        ({"request": REQUEST, "response": {**RESPONSE, "created": "soon"}}, "schema:2:None"),
        ({"request": REQUEST, "response": {**RESPONSE, "created": None}}, "schema:2:None"),
        ({"request": REQUEST, "response": {**RESPONSE, "usage": {"prompt_tokens": "x"}}}, "schema:2:2026-01-05"),
        ({"request": [], "response": RESPONSE}, "schema:2:None"),
        ({"custom_id": "c", "response": {"status_code": 200, "body": RESPONSE}}, "no_content:2:2026-01-05"),
        ({"request": REQUEST, "response": {"created": 1767607201}}, "no_content:2:2026-01-05"),
    ],
)
def test_a_line_that_is_no_call_is_counted(tmp_path: Path, row: Any, reason: str) -> None:
    good = {"request": REQUEST, "response": RESPONSE}
    rows = rows_of(tmp_path, good, row, good)
    assert reasons(rows) == [reason]
    assert [t.line for t in rows.traces] == [1, 3]


def test_a_missing_source_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"traces\.source\.uri.*\.$"):
        OpenAiLogs(str(tmp_path)).parts()
