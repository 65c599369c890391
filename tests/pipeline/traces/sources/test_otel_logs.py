"""Calls whose text is in log records, as OpenTelemetry's instrumentations of OpenAI and Google write them."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from pipeline.traces.sources import otel_calls

from .conftest import reasons
from .test_otel import ANSWERED, ASKED, START, one, pairs, request, rows_of, span, typed

IDS = {"traceId": "5b8efff798038103d269b633813fc60c", "spanId": "eee19b7ec3c1b174"}
QUESTION = {"role": "user", "content": "What is 1 + 1?"}


def record(name: str, body: Any = None, after: int = 1, **attributes: Any) -> dict[str, Any]:
    times = {"timeUnixNano": str(START + after), "observedTimeUnixNano": str(START + after)}
    return {
        **IDS,
        **times,
        "eventName": name,
        "attributes": pairs(attributes),
        **({"body": typed(body)} if body else {}),
    }


def logs(*records: Any, **resource: Any) -> dict[str, Any]:
    scope = {"scope": {"name": "app"}, "logRecords": list(records)}
    return {"resourceLogs": [{"resource": {"attributes": pairs(resource)}, "scopeLogs": [scope]}]}


def details(**fields: Any) -> dict[str, Any]:
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.input.messages": ASKED,
        "gen_ai.output.messages": ANSWERED,
    }
    return {**record("gen_ai.client.inference.operation.details", **attributes), **fields}


def messages() -> list[dict[str, Any]]:
    return [
        record("gen_ai.system.message", {"content": "Be brief."}, 1),
        record("gen_ai.user.message", {"content": "What is 1 + 1?"}, 2),
        record("gen_ai.choice", {"index": 0, "finish_reason": "stop", "message": {"content": "2"}}, 3),
    ]


def test_a_record_may_hold_the_whole_call(tmp_path: Path) -> None:
    trace = one(tmp_path, logs(details(), region="eu"))
    assert (trace.messages, trace.completion, trace.finish_reason) == ([QUESTION], "2", "stop")
    assert (trace.trace_id, trace.observation_id) == (IDS["traceId"], IDS["spanId"])
    assert (trace.model, trace.latency_s, json.loads(trace.metadata)) == ("m", None, {"region": "eu"})


@pytest.mark.parametrize("order", permutations(range(3)))
def test_messages_of_a_log_join_their_span_in_any_order(tmp_path: Path, order: tuple[int, ...]) -> None:
    system, user, choice = messages()
    requests = [logs(choice, system), request(span({"user_consent": True})), logs(user)]
    trace = one(tmp_path, *(requests[n] for n in order))
    assert trace.messages == [{"role": "system", "content": "Be brief."}, QUESTION]
    assert (trace.completion, trace.model, trace.latency_s) == ("2", "m", 1.5)
    assert json.loads(trace.metadata) == {"user_consent": True}


@pytest.mark.parametrize("first", [True, False])
def test_a_call_in_both_places_is_one_row(tmp_path: Path, first: bool) -> None:
    call = request(span({"gen_ai.input.messages": ASKED, "gen_ai.output.messages": ANSWERED}))
    requests = [logs(details()), call] if first else [call, logs(details())]
    assert one(tmp_path, *requests).latency_s == 1.5


def test_a_name_may_be_an_attribute(tmp_path: Path) -> None:
    older = [{**each, "eventName": "", "attributes": pairs({"event.name": each["eventName"]})} for each in messages()]
    assert one(tmp_path, logs(*older), request(span({}))).completion == "2"


def test_messages_without_their_span_are_a_call_without_model(tmp_path: Path) -> None:
    trace = one(tmp_path, logs(*messages()))
    assert (trace.completion, trace.model) == ("2", "")  # the gate `schema` rejects it


def test_a_record_that_is_no_call_is_counted(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, logs(record("app.started", "up"), {**IDS, "timeUnixNano": "soon"}, "a record", details()))
    assert sorted(reasons(rows)) == ["not_generation:1:None", "not_generation:2:None", "schema:3:None"]
    assert len(rows.traces) == 1


@pytest.mark.parametrize("time", ["soon", 10**40])
def test_a_call_without_a_time_is_counted(tmp_path: Path, time: Any) -> None:
    assert reasons(rows_of(tmp_path, logs(details(timeUnixNano=time)))) == ["schema:1:None"]


def test_what_waits_is_bounded_and_every_row_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otel_calls, "HELD", 5)
    lone = [span({}, spanId=f"{n:016x}") for n in range(20)]
    rows = rows_of(tmp_path, request(*lone), logs(*messages()), request(span({})))
    assert reasons(rows) == [f"no_content:{n}:2026-01-05" for n in range(1, 21)]
    assert [trace.completion for trace in rows.traces] == ["2"]


def test_a_span_that_was_exported_twice_is_two_rows(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, request(span({}), span({})), logs(*messages()))
    assert (len(rows.traces), len(rows.rejected)) == (1, 1)


RESPONSE = {"gen_ai.response.id": "r1"}
TEXTS = {"gen_ai.input.messages": ASKED, "gen_ai.output.messages": ANSWERED}


@pytest.mark.parametrize("order", permutations(range(3)))
def test_a_record_that_names_the_response_alone_is_the_spans(tmp_path: Path, order: tuple[int, ...]) -> None:
    def unplaced(response: str) -> dict[str, Any]:
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "m",
            "gen_ai.response.id": response,
            **TEXTS,
        }
        whole = record("gen_ai.client.inference.operation.details", None, 1, **attributes)
        return logs({key: value for key, value in whole.items() if key not in IDS})

    received = [request(span({**RESPONSE, **TEXTS})), unplaced("r1"), unplaced("r2")]
    rows = rows_of(tmp_path, *(received[n] for n in order))
    assert sorted(row.observation_id == IDS["spanId"] for row in rows.traces) == [False, True]
    assert [row.completion for row in rows.traces] == ["2", "2"]


@pytest.mark.parametrize("late", [False, True])
def test_a_record_defines_the_tools_that_a_span_calls(tmp_path: Path, late: bool) -> None:
    part = {"type": "tool_call", "id": "c", "name": "search", "arguments": {}}
    texts = {**TEXTS, "gen_ai.output.messages": [{"role": "assistant", "parts": [part]}]}
    named = [{"type": "function", "name": "search", "parameters": None}]
    whole = [{"type": "function", "name": "search", "parameters": {"type": "object"}}]
    of_span = request(span({**texts, "gen_ai.tool.definitions": named}))
    of_log = logs(record("gen_ai.client.inference.operation.details", None, 1, **{"gen_ai.tool.definitions": whole}))
    trace = one(tmp_path, *((of_span, of_log) if late else (of_log, of_span)))
    assert json.loads(trace.tools or "")[0]["function"]["parameters"] == {"type": "object"}


@pytest.mark.parametrize("conversation", [None, "resp_0"])
def test_an_agents_span_says_what_a_call_had(tmp_path: Path, conversation: str | None) -> None:
    call = span({**RESPONSE, "gen_ai.response.id": "resp_1", **TEXTS}, parentSpanId="00f067aa0ba902b7")
    own = {"gen_ai.operation.name": "invoke_agent", "gen_ai.tool.definitions": '[{"name": "search", "parameters": {}}]'}
    kept = {"gen_ai.conversation.id": conversation} if conversation else {}
    rows = rows_of(tmp_path, request(call, span({**own, **kept}, spanId="00f067aa0ba902b7")))
    [trace] = rows.traces
    assert reasons(rows) == ["not_generation:2:2026-01-05"]
    assert json.loads(trace.tools or "")[0]["function"]["name"] == "search"
    assert trace.unreadable == ("input: a conversation that the provider keeps" if conversation else None)
