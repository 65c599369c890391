"""A caller's connection: the body that comes, what may be asked of the gateway itself, and the answer that goes."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from types import MappingProxyType
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from pipeline.rollout.gateway.asked import BadRequest
from pipeline.rollout.gateway.door import LOOPBACK, host_name
from pipeline.rollout.gateway.spans import Served
from pipeline.rollout.gateway.upstream import Opened, SlotFailed
from pipeline.rollout.router import Arm

MOST_BODY_BYTES = 8 << 20
"""Of a request: a conversation of a million tokens has some four."""


async def limited_body(request: Request) -> bytearray:
    """Raises BadRequest for one that is too long, or compressed."""
    if request.headers.get("content-encoding", "identity") != "identity":
        raise BadRequest(415, "The body is compressed. Send it as it is.")
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MOST_BODY_BYTES:
                raise BadRequest(413, f"The body has more than {MOST_BODY_BYTES:,} bytes. Send a shorter conversation.")
    except ClientDisconnect as gone:
        raise BadRequest(400, "The body broke off.") from gone
    return body


class Caller(Request):
    """One request of a connection. `trusted`: whether its own headers are believed."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, trusted: bool) -> None:
        super().__init__(scope, receive)
        self.trusted, self._respond = trusted, send

    def pinned_arm(self) -> Arm | None:
        """The arm that the caller names. Raises BadRequest for one who may not, or names none that there is."""
        named = self.headers.get("x-rollout-arm")
        if named is None:
            return None
        if not self._may_name_arm():
            raise BadRequest(403, "Only the gateway's own page and trusted callers may name the arm. Leave it out.")
        if named not in ("champion", "canary"):
            raise BadRequest(400, "x-rollout-arm is neither champion nor canary. Name one of them, or leave it out.")
        return named

    def _may_name_arm(self) -> bool:
        """The gateway's own page may on this machine, and a program that is trusted; door.py refuses other pages."""
        if "origin" not in self.headers:
            return self.trusted
        return host_name(self.headers["host"].encode("latin-1")) in LOOPBACK

    def forwarded(self, trace_id: str) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "traceparent": f"00-{trace_id}-{trace_id[:16]}-01"}
        key = self.headers.get("authorization")
        return {**headers, "Authorization": key} if key else headers

    async def unless_gone(self, waiting: Coroutine[Any, Any, Opened]) -> Opened | None:
        """What is awaited; None where the caller hangs up before it is there, which cancels it."""
        answer, gone = asyncio.ensure_future(waiting), asyncio.ensure_future(self._gone())
        try:
            await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
            return await answer if answer.done() else None
        finally:
            answer.cancel()
            gone.cancel()

    async def _gone(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def reply(
        self, status: int, content_type: str, body: bytes | AsyncIterator[bytes], served: Served, served_by: Arm
    ) -> None:
        """Send an answer; a stream ends early where the caller hangs up."""
        headers = {"content-type": content_type, **_identified(served.trace_id)}
        if served.pinned or ("x-rollout-show" in self.headers and self._may_name_arm()):
            headers |= {"x-rollout-arm": served.arm, "x-rollout-served-by": served_by}
        if isinstance(body, bytes):
            await self.respond(Response(body, status, headers))
        else:
            await self.respond(StreamingResponse(body, status, {**headers, "cache-control": "no-cache"}))

    async def refuse(self, failed: SlotFailed, trace_id: str) -> None:
        """Say why there is no answer: with the fields of the server's own error, where one refused."""
        headers = {**_identified(trace_id), **failed.headers}
        await self.respond(JSONResponse(error_body(failed.status, str(failed), failed.error), failed.status, headers))

    async def respond(self, response: Response) -> None:
        await response(self.scope, self.receive, self._respond)


def _identified(trace_id: str) -> dict[str, str]:
    """`x-request-id` is where OpenAI's clients look for it."""
    return {"x-trace-id": trace_id, "x-request-id": trace_id}


def error_body(status: int, message: str, own: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """In the form that OpenAI's clients read. `own`: fields of a server's own error."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": status, **own}}
