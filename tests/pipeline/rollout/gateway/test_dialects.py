"""One conversation in the three APIs: passed through as it came, recorded in one form, and read back as one trace."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pipeline.rollout.gateway.dialects import DIALECTS
from pipeline.traces.rows import Trace
from tests.pipeline.rollout.gateway.slot_server import SlotServer, response, stream
from tests.pipeline.rollout.gateway.test_spans import rows_of
from tests.pipeline.rollout.gateway.world import World, user_of

pytestmark = pytest.mark.slow

CHAT, RESPONSES, MESSAGES, COUNT = DIALECTS
PATHS = (CHAT, RESPONSES, MESSAGES)
SAID = json.loads((Path(__file__).parent / "dialects.json").read_text(encoding="utf-8"))
"""Of each: a request, its answer whole, and as the events of a stream. All say the same."""
REQUESTS: dict[str, dict[str, Any]] = {path: SAID[path]["request"] for path in PATHS}
REQUESTS[COUNT] = REQUESTS[MESSAGES]
ANSWERS: dict[str, dict[str, Any]] = {path: SAID[path]["answer"] for path in PATHS}
EVENTS: dict[str, list[dict[str, Any]]] = {path: SAID[path]["stream"] for path in PATHS}


def sent(path: str, events: list[dict[str, Any]]) -> list[bytes]:
    named = "" if path == CHAT else "event: {}\n"
    lines = [(named.format(event.get("type")) + f"data: {json.dumps(event)}\n\n").encode() for event in events]
    return [*lines, b"data: [DONE]\n\n"] if path == CHAT and events == EVENTS[CHAT] else lines


def gives(raw: bytes) -> Callable[[SlotServer, dict[str, Any]], bytes]:
    return lambda server, body: raw


def ask(gateway: World, path: str, streamed: bool = False, **more: Any) -> httpx2.Response:
    named = {"user_id": user_of("canary"), "user_consent": "true"}
    body = {"model": "any", **REQUESTS[path], "metadata": named, "stream": streamed, **more}
    return gateway.client.post(path, json=body, headers={"x-session-id": "s-1", "x-api-key": "a-key"})


def trace_of(gateway: World, answer: httpx2.Response) -> Trace:
    return next(row for row in rows_of(gateway) if row.trace_id == answer.headers["request-id"])


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
def test_one_conversation_is_one_trace_in_every_dialect(gateway: World, streamed: bool) -> None:
    traces: list[dict[str, Any]] = []
    for path in PATHS:
        raw = stream("", sent(path, EVENTS[path])) if streamed else response(json.dumps(ANSWERS[path]).encode())
        gateway.canary.answer = gives(raw)
        answer = ask(gateway, path, streamed)
        assert answer.content == raw.partition(b"\r\n\r\n")[2], "passed through"
        passed = {**REQUESTS[path], "stream": streamed, "model": gateway.canary.name}
        assert (gateway.canary.paths[-1], gateway.canary.asked[-1]) == (path, passed)
        assert gateway.canary.headers[-1]["X-Api-Key"] == "a-key"
        marks = gateway.request(answer).marks
        given = {"input.token_ids": [5, 6], "output.token_ids": [8, 9]} if path == CHAT else {}
        given |= {} if path == MESSAGES else {"output.logprobs": [-0.5, -1.5]}
        kept = {name: json.loads(marks[f"gen_ai.{name}"]) for name in given}
        assert kept == given and marks["model.digest"] == "b" * 64
        row = trace_of(gateway, answer)
        said = ("messages", "completion", "tool_calls", "tools", "finish_reason", "input_tokens", "output_tokens")
        whose = ("user_id", "session_id", "model", "level", "unreadable", "has_payload")
        traces.append({name: getattr(row, name) for name in (*said, *whose)})
    assert traces[0] == traces[1] == traces[2]
    assert [message["role"] for message in traces[0]["messages"]] == ["system", "user", "assistant", "tool", "user"]
    assert traces[0]["completion"] == "I look again." and json.loads(traces[0]["tool_calls"])[0]["id"] == "c2"
    assert (traces[0]["finish_reason"], traces[0]["user_id"]) == ("tool_calls", user_of("canary"))


def error_of(path: str, body: dict[str, Any]) -> str:
    """Its message, in the form of the API."""
    assert body["error"]["type"] in ("api_error" if path == MESSAGES else "server_error", "invalid_request_error")
    assert (body.get("type") == "error") == (path == MESSAGES or (path == RESPONSES and "message" in body))
    return body["error"]["message"]


@pytest.mark.parametrize("path", PATHS)
def test_a_stream_that_breaks_off_ends_in_the_dialects_error(gateway: World, path: str) -> None:
    first = 2 if path == RESPONSES else 4
    gateway.canary.answer = gives(stream("", sent(path, EVENTS[path][:first])))
    answer = ask(gateway, path, streamed=True)
    *_, last = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert "ended the stream before the answer was finished" in error_of(path, json.loads(last))
    assert gateway.request(answer).marks["error.type"] == "stream_broken" and not gateway.champion.asked


@pytest.mark.parametrize("path", PATHS[1:])
@pytest.mark.parametrize("how", ["ends", "fails"])
def test_a_canary_that_only_began_is_replaced(gateway: World, path: str, how: str) -> None:
    error: dict[str, Any] = {"type": "error", "error": {"type": "api_error", "message": "no"}}
    if path == RESPONSES:
        error = {"type": "response.failed", "response": {"status": "failed", "error": {"message": "no"}}}
    opened = [EVENTS[path][0], error] if how == "fails" else EVENTS[path][:1]
    gateway.canary.answer = gives(stream("", sent(path, opened)))
    gateway.champion.answer = gives(stream("", sent(path, EVENTS[path])))
    answer = ask(gateway, path, streamed=True)
    assert answer.content == b"".join(sent(path, EVENTS[path]))
    served = [each["rollout.served_by"] for each in gateway.request(answer).tries]
    assert served == ["canary", "champion"]


@pytest.mark.parametrize("path", PATHS)
def test_refusals_are_in_the_dialects_form(gateway: World, path: str) -> None:
    empty: dict[str, Any] = {"input": []} if path == RESPONSES else {"messages": [{"content": "x"}]}
    refused = ask(gateway, path, **empty)
    assert refused.status_code == 400 and f"`{next(iter(empty))}`" in error_of(path, refused.json())
    foreign = gateway.client.post(path, json=REQUESTS[path], headers={"origin": "http://evil.example"})
    assert foreign.status_code == 403 and "Another site's page" in foreign.json()["error"]["message"]
    for slot in (gateway.champion, gateway.canary):
        slot.answer = gives(b"")
    lost = ask(gateway, path)
    assert lost.status_code == 502 and "broke off" in error_of(path, lost.json())


def test_a_count_of_tokens_is_no_answer(gateway: World) -> None:
    before = gateway.state().served
    gateway.champion.answer = gives(response(b'{"input_tokens": 12}'))
    assert ask(gateway, COUNT).json() == {"input_tokens": 12}
    gateway.champion.answer = gives(response(b'{"detail": "Not Found"}', 404))
    lacks = ask(gateway, COUNT)
    assert (lacks.status_code, lacks.json()) == (404, {"detail": "Not Found"})
    assert (gateway.state().served, gateway.canary.asked) == (before, [])


@pytest.mark.parametrize(
    ("user_id", "user", "session"),
    [
        ("user_ab12_account__session_5f-1", "user_ab12_account_", "5f-1"),
        ('{"device_id": "d1", "account_uuid": "", "session_id": "5f-1"}', "d1", "5f-1"),
        ("{ada", "{ada", None),
    ],
)
def test_a_coding_agents_user_is_told_from_its_session(
    gateway: World, user_id: str, user: str, session: str | None
) -> None:
    for slot in (gateway.champion, gateway.canary):
        slot.answer = gives(response(json.dumps(ANSWERS[MESSAGES]).encode()))
    body = {**REQUESTS[MESSAGES], "metadata": {"user_id": user_id}}
    row = trace_of(gateway, gateway.client.post(MESSAGES, json=body))
    assert (row.user_id, row.session_id) == (user, session)


def test_a_conversation_that_the_server_keeps_is_unreadable(gateway: World) -> None:
    gateway.canary.answer = gives(response(json.dumps(ANSWERS[RESPONSES]).encode()))
    row = trace_of(gateway, ask(gateway, RESPONSES, previous_response_id="resp_1"))
    assert row.unreadable == "input: a conversation that the provider keeps"
