"""Callers who send or read too slowly are cut, and the slot is free again."""

import json
import socket
import time
from contextlib import suppress

import pytest

from pipeline.core import layout
from pipeline.rollout.gateway import __main__ as running
from pipeline.rollout.gateway.spans import recorded
from tests.pipeline.rollout.gateway.slot_server import event, stream
from tests.pipeline.rollout.gateway.world import NAME, World, awaited, user_of

pytestmark = pytest.mark.slow

HEAD = b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 500\r\n"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "PATIENCE_S", 0.3)


def connected(gateway: World) -> socket.socket:
    caller = socket.socket()
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # the kernel keeps less of what is not read
    caller.settimeout(20)
    caller.connect(("127.0.0.1", int(gateway.gateway.url.rpartition(":")[2])))
    return caller


@pytest.mark.parametrize("sent", [b"", HEAD, HEAD + b'\r\n{"messages": ['], ids=["nothing", "a head", "a body"])
def test_a_request_that_does_not_come_whole_is_cut(gateway: World, sent: bytes) -> None:
    before, got = gateway.state().served, b""
    with connected(gateway) as caller, suppress(ConnectionResetError):
        caller.sendall(sent)
        got = caller.recv(1000)
    assert (got, gateway.state().served) == (b"", before)


@pytest.mark.parametrize("pipelined", [False, True], ids=["one", "pipelined"])
def test_a_caller_who_does_not_read_frees_the_slot(gateway: World, pipelined: bool) -> None:
    since, many = time.time(), [event("x", {"content": "x" * 60_000})] * 300
    gateway.canary.answer = lambda server, body: stream("", many)
    body = json.dumps({"messages": [{"role": "user", "content": "x"}], "user": user_of("canary"), "stream": True})
    kind = f"Content-Type: application/json\r\nContent-Length: {len(body)}"
    asked = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n{kind}\r\n\r\n{body}".encode()
    with connected(gateway) as caller:
        caller.sendall(asked * (2 if pipelined else 1))
        awaited(lambda: gateway.canary.asked)
        awaited(lambda: all(slot.in_flight == 0 for slot in gateway.state().slots))
    (row,) = awaited(lambda: recorded(gateway.store.path(layout.served(NAME)), since, time.time()))
    assert not row.failed or pipelined, "no error of the arm"
    assert "gen_ai.output.messages" not in row.marks or row.marks["rollout.aborted"]
