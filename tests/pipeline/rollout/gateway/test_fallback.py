"""What a caller gets, and what is recorded, when a slot fails: before its first byte, after it, or in the answer."""

import json
import socket
import threading

import pytest

from pipeline.rollout.gateway.proxy import OPEN_S, Breaker
from tests.pipeline.rollout.gateway.slot_server import cut, event, response, stream
from tests.pipeline.rollout.gateway.world import awaited, text_of, user_of

ERROR = json.dumps({"error": {"message": "out of memory", "code": 500}}).encode()
FAILURES = {
    "disconnected": b"",
    "500": response(ERROR, 500),
    "502": response(b"bad gateway", 502, "text/html"),
    "503": response(ERROR, 503),
    "504": response(ERROR, 504),
    "429": response(ERROR, 429),
    "404": response(ERROR, 404),
    "error_in_response": response(ERROR),
    "invalid_response": response(b"<html>"),
}


def content_of(body: str) -> str:
    pieces = [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: {")]
    return "".join(piece["choices"][0]["delta"].get("content", "") for piece in pieces if "choices" in piece)


def fails_with(raw: bytes):
    return lambda server, body: raw


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAILURES)
def test_champion_answers_for_a_canary_that_fails(gateway, kind):
    gateway.canary.answer = fails_with(FAILURES[kind])
    answer = gateway.post(user=user_of("canary"))
    assert (answer.status_code, text_of(answer)) == (200, f"It is {gateway.champion.name}.")
    row = gateway.request(answer)
    assert [(each["rollout.arm"], each["rollout.served_by"]) for each in row.tries] == [
        ("canary", "canary"),
        ("canary", "champion"),
    ]
    assert [each.get("error.type") for each in row.tries] == [kind, None]
    assert len({each.record["traceId"] for each in row.spans}) == 1
    assert len({each.record["spanId"] for each in row.spans}) == 2
    assert row.failed


def test_what_the_model_refuses_is_the_callers_to_read(gateway):
    gateway.canary.answer = fails_with(response(b'{"error": {"message": "too many tokens"}}', 400))
    answer = gateway.post(user=user_of("canary"))
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "too many tokens")
    assert not gateway.champion.asked
    assert gateway.request(answer).marks["error.type"] == "400"


def pieces(name):
    return [event(name, {"content": "It "}), event(name, {"content": "is "})]


BROKEN = {
    "cut in an event": lambda name: cut(stream(name, [*pieces(name), b'data: {"id": "c-1", "choi'])),
    "ends in an event": lambda name: stream(name, [*pieces(name), b'data: {"id": "c-1", "choi']),
    "not finished": lambda name: stream(name, pieces(name)),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_stream_that_breaks_off_ends_with_an_error(gateway, how):
    gateway.canary.answer = fails_with(BROKEN[how](gateway.canary.name))
    answer = gateway.post(user=user_of("canary"), stream=True)
    sent = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert content_of(answer.text) == "It is "  # nobody begins anew behind the first byte
    assert "error" in json.loads(sent[-1])  # and each event is whole
    assert not gateway.champion.asked
    row = gateway.request(answer)
    assert (row.marks["error.type"], row.marks["rollout.served_by"]) == ("stream_broken", "canary")


@pytest.mark.slow
def test_a_dead_canary_is_spared_most_tries(gateway):
    gateway.canary.answer = fails_with(FAILURES["503"])
    for _ in range(3):
        gateway.post(user=user_of("canary"))
    asked = len(gateway.canary.asked)
    spared = gateway.post(user=user_of("canary"))
    assert text_of(spared) == f"It is {gateway.champion.name}." and len(gateway.canary.asked) == asked
    row = gateway.request(spared)
    assert [(each["rollout.arm"], each["rollout.served_by"]) for each in row.tries] == [("canary", "champion")]
    assert row.failed, "one error of the canary, although nobody asked it"
    gateway.canary.answer = fails_with(None)
    awaited(lambda: text_of(gateway.post(user=user_of("canary"))) == f"It is {gateway.canary.name}.")


def test_an_open_breaker_lets_one_request_try_each_second(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    breaker = Breaker()
    for _ in range(3):
        assert breaker.lets()
        breaker.saw(failed=True)
    assert not breaker.lets()
    now[0] = OPEN_S
    assert breaker.lets() and not breaker.lets()
    breaker.saw(failed=False)
    assert breaker.lets() and breaker.lets()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"no json", 400),
        (b"[1, 2]", 400),
        (b'{"messages": null}', 400),
        (b'{"messages": [{"content": "hi"}]}', 400),
        (b'{"messages": [{"role": "user", "content": "\xff"}]}', 400),
        (b'{"messages": [{"role": "user", "content": "hi"}], "user": "\\ud800"}', 400),
        (b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400),
        (b'{"messages": [{"role": "user", "content": "' + b"x" * (10 << 20) + b'"}]}', 413),
    ],
)
def test_what_is_no_request_reaches_no_model(gateway, body, status):
    headers = {"content-type": "application/json"}
    answer = gateway.client.post("/v1/chat/completions", content=body, headers=headers)
    assert (answer.status_code, answer.json()["error"]["type"]) == (status, "invalid_request_error")
    parts = (body[at : at + 65_536] for at in range(0, len(body), 65_536))  # and without a length
    assert gateway.client.post("/v1/chat/completions", content=parts, headers=headers).status_code == status
    assert not gateway.champion.asked and not gateway.canary.asked
    assert gateway.post(user=user_of("champion")).status_code == 200


@pytest.mark.slow
def test_a_caller_who_hangs_up_frees_the_slot(gateway):
    held, user = threading.Event(), user_of("canary")

    def waits(server, body):
        held.set()
        server.release.wait(20)
        return None

    gateway.canary.answer, gateway.canary.release = waits, threading.Event()
    body = json.dumps({"messages": [{"role": "user", "content": "x"}], "user": user, "x": "hung"}).encode()
    kind = f"Content-Type: application/json\r\nContent-Length: {len(body)}"
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n{kind}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", int(gateway.gateway.url.rpartition(":")[2]))) as caller:
        caller.sendall(head + body)
        assert held.wait(20)
        assert gateway.state().slots[1].in_flight == 1
    awaited(lambda: gateway.state().slots[1].in_flight == 0)
    gateway.canary.release.set()
    awaited(lambda: any("aborted" in json.dumps(line) for line in gateway.lines()))
