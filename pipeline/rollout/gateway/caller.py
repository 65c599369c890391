"""A caller's connection: the body that comes, what may be asked of the gateway itself, and the answer that goes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from pipeline.rollout.gateway.asked import BadRequest
from pipeline.rollout.gateway.door import LOOPBACK, host_name
from pipeline.rollout.gateway.process import MOST_BODY_BYTES
from pipeline.rollout.gateway.spans import Served
from pipeline.rollout.gateway.upstream import SlotFailed
from pipeline.rollout.router import Arm

WATCH_AFTER_S = 0.2
"""Answers that take longer are given up when the caller hangs up."""


class Caller:
    """One request of a connection."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, trusted: bool) -> None:
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.trusted = trusted
        self._receive, self._send = receive, send
        self.disconnected = False
        """Whether the caller hung up."""
        self._watching: asyncio.Task[None] | None = None
        self._waiting: asyncio.Task[Any] | None = None

    async def body(self) -> bytes | bytearray:
        """Raises BadRequest for one that is too long, or compressed."""
        if self.headers.get(b"content-encoding", b"identity") != b"identity":
            raise BadRequest(415, "The body is compressed. Send it as it is.")
        if int(self.headers.get(b"content-length", b"0")) > MOST_BODY_BYTES:
            raise BadRequest(413, f"The body has more than {MOST_BODY_BYTES:,} bytes. Send a shorter conversation.")
        message = await self._receive()
        if not message.get("more_body"):
            return message.get("body", b"")
        body = bytearray(message.get("body", b""))
        while message.get("more_body"):
            message = await self._receive()
            body += message.get("body", b"")
            if len(body) > MOST_BODY_BYTES:
                raise BadRequest(413, f"The body has more than {MOST_BODY_BYTES:,} bytes. Send a shorter conversation.")
        return body

    def pinned_arm(self) -> Arm | None:
        """The arm that the caller names. Raises BadRequest for one who may not, or names none that there is.

        The gateway's own page may on this machine, and a program that is trusted. Other pages are refused in door.py.
        """
        named = self.headers.get(b"x-rollout-arm")
        if named is None:
            return None
        if not self._may_name_arm():
            raise BadRequest(403, "Only the gateway's own page and trusted callers may name the arm. Leave it out.")
        if named not in (b"champion", b"canary"):
            raise BadRequest(400, "x-rollout-arm is neither champion nor canary. Name one of them, or leave it out.")
        return "champion" if named == b"champion" else "canary"

    def _may_name_arm(self) -> bool:
        if b"origin" not in self.headers:
            return self.trusted
        return host_name(self.headers[b"host"]) in LOOPBACK

    def forwarded(self, trace_id: str) -> dict[str, str]:
        """Headers of the request to a slot."""
        headers = {"Content-Type": "application/json", "traceparent": f"00-{trace_id}-{trace_id[:16]}-01"}
        if key := self.headers.get(b"authorization"):
            headers["Authorization"] = key.decode("latin-1")
        return headers

    def unless_disconnected(self, after_s: float = WATCH_AFTER_S) -> UnlessDisconnected:
        """Cuts a block short when the caller hangs up, which is looked at after `after_s`."""
        return UnlessDisconnected(self, after_s)

    def watch(self, waiting: asyncio.Task[Any] | None) -> None:
        """From now on note it when the caller hangs up, and cancel what is `waiting` then."""

        async def hung_up() -> None:
            while (await self._receive())["type"] != "http.disconnect":
                pass
            self.disconnected = True
            if self._waiting is not None:
                self._waiting.cancel()

        self._waiting = waiting
        if waiting is not None and self._watching is None:
            self._watching = asyncio.ensure_future(hung_up())

    async def reply(self, status: int, content_type: str, body: bytes, served: Served, served_by: Arm) -> None:
        await self._whole(status, self._named(content_type, served, served_by), body)

    async def begin(self, content_type: str, served: Served, served_by: Arm) -> None:
        """Start a stream."""
        headers = [*self._named(content_type, served, served_by), (b"cache-control", b"no-cache")]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def piece(self, events: bytes) -> None:
        await self._send({"type": "http.response.body", "body": events, "more_body": True})

    async def error_event(self, message: str) -> None:
        """What a stream ends with that cannot go on: clients of OpenAI raise it."""
        await self.piece(b"data: " + _error(502, message) + b"\n\n")

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b""})
        self._stop_watching()

    async def refuse(self, refusal: BadRequest | SlotFailed, trace_id: str = "") -> None:
        """Say why there is no answer: with the fields of the server's own error, where one refused."""
        own = refusal.error if isinstance(refusal, SlotFailed) else {}
        body = _error(refusal.status, str(refusal), own)
        headers = [(b"content-type", b"application/json"), *_identified(trace_id)]
        if isinstance(refusal, SlotFailed):
            headers += [(name.lower().encode(), value.encode("latin-1")) for name, value in refusal.headers.items()]
        await self._whole(refusal.status, headers, body)

    async def _whole(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        sized = [*headers, (b"content-length", b"%d" % len(body))]
        await self._send({"type": "http.response.start", "status": status, "headers": sized})
        await self._send({"type": "http.response.body", "body": body})
        self._stop_watching()

    def _named(self, content_type: str, served: Served, served_by: Arm) -> list[tuple[bytes, bytes]]:
        headers = [(b"content-type", content_type.encode("latin-1")), *_identified(served.trace_id)]
        if served.pinned or (b"x-rollout-show" in self.headers and self._may_name_arm()):
            headers += [(b"x-rollout-arm", served.arm.encode()), (b"x-rollout-served-by", served_by.encode())]
        return headers

    def _stop_watching(self) -> None:
        if self._watching is not None:
            self._watching.cancel()


class UnlessDisconnected:
    """A block that ends when the caller hangs up."""

    def __init__(self, caller: Caller, after_s: float) -> None:
        self._caller, self._after_s = caller, after_s

    def __enter__(self) -> None:
        self._task = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(self._after_s, self._caller.watch, self._task)

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> bool:
        self._timer.cancel()
        self._caller.watch(None)
        cut = kind is asyncio.CancelledError and self._caller.disconnected
        if cut and self._task is not None:
            self._task.uncancel()
        return cut


def _identified(trace_id: str) -> list[tuple[bytes, bytes]]:
    """`x-request-id` is where OpenAI's clients look for it."""
    named = trace_id.encode()
    return [(b"x-trace-id", named), (b"x-request-id", named)] if trace_id else []


def _error(status: int, message: str, own: Mapping[str, Any] = MappingProxyType({})) -> bytes:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": status, **own}})
