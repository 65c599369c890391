"""One try at one slot, and its reply: one JSON body, or a stream's events. An answer is 200 without an error in it;
a refusal of this one request (400, 413, 422) is the caller's to read; all else is a failure of the slot."""

import asyncio
import errno
import os
import re
import resource
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple

import aiohttp
import msgspec

from pipeline.rollout.gateway.asked import CallerRequest, Shortage
from pipeline.rollout.gateway.dialects import DONE, Dialect, reply_of, type_of
from pipeline.rollout.gateway.split import ServedSlot

REFUSALS = (400, 413, 422)
CONNECT_S = 2.0
SILENT_S = 600.0
"""Longest silence of a slot."""
KEEP_IDLE_S = 4.0
"""Shorter than the 5 s after which servers like vLLM close an idle connection, lest that happens under a request."""
MOST_STREAMS, SPARE_FILES = 10_000, 48
"""Requests under way, at most; open files that are no connection."""
KEPT_HEADERS = ("Content-Type", "Retry-After", "Retry-After-Ms", "X-Should-Retry")
"""Of an answer: the last three are what OpenAI's clients (3.54) go by when they ask again."""
_END = re.compile(rb"\r?\n\r?\n")
"""Of an event."""
_FAULTS = (aiohttp.ClientError, TimeoutError, OSError, asyncio.IncompleteReadError)
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class StreamBroken(Exception):
    """The stream ended before the answer did."""


class Opened(NamedTuple):
    """An answer, whole or begun. `events`: what follows `body` of a stream; None where `body` is all."""

    status: int
    headers: dict[str, str]
    body: bytes
    events: AsyncIterator[bytes] | None = None
    response: aiohttp.ClientResponse | None = None

    def close(self) -> None:
        if self.response is not None:
            self.response.close()


class SlotFailed(Exception):
    """No answer. `kind` goes to `error.type`; `refusal`, the server's own, or message and status to a caller who gets
    nothing else."""

    def __init__(self, kind: str, message: str, status: int = 502, refusal: Opened | None = None) -> None:
        super().__init__(message)
        self.kind, self.status, self.refusal = kind, status, refusal


def most_streams() -> int:
    """How many requests may be under way: each has two files, and a fifth is for callers who ask nothing or wait."""
    return max(4, min(MOST_STREAMS, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - SPARE_FILES) * 2 // 5))


class Upstream:
    """Pooled connections to the slots while its block runs, in one event loop. `limit`: requests under way."""

    _session: aiohttp.ClientSession

    async def __aenter__(self) -> None:
        self.limit = most_streams()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self.limit, keepalive_timeout=KEEP_IDLE_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept-Encoding"),
        )

    async def __aexit__(self, *raised: object) -> None:
        await self._session.close()

    async def ask(self, slot: ServedSlot, asked: CallerRequest, headers: dict[str, str]) -> Opened:
        """Raises SlotFailed when there is no answer, or none before the first event of a stream; Shortage when the
        gateway cannot ask."""
        url = f"{slot.url.rstrip('/')}{asked.dialect.path}"
        try:
            response = await self._post(url, asked.body(slot.name), headers)
            if asked.stream and response.status == 200 and response.content_type == "text/event-stream":
                return await _begun(response, asked.dialect)
            async with response:
                content = await response.read()
        except _FAULTS as error:
            raise _failed(error) from error
        return _whole(response.status, response.headers, content, asked.dialect)

    async def _post(self, url: str, body: bytes, headers: dict[str, str]) -> aiohttp.ClientResponse:
        """Asked again where no byte came: the connection may have been closed after it was idle for too long."""
        try:
            return await self._session.post(url, data=body, headers=headers, allow_redirects=False)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            return await self._session.post(url, data=body, headers=headers, allow_redirects=False)


def _failed(error: BaseException) -> SlotFailed | Shortage:
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
        return Shortage(f"cannot open a connection to the model's server ({os.strerror(error.errno)}).")
    if isinstance(error, aiohttp.ServerTimeoutError | TimeoutError):
        return SlotFailed("timeout", "The model's server did not answer in time.", 504)
    if isinstance(error, aiohttp.ClientConnectorError):
        return SlotFailed("unreachable", "The model's server cannot be reached.", 503)
    return SlotFailed("disconnected", f"The model's server broke off ({type(error).__name__}).")


def _whole(status: int, headers: Mapping[str, str], content: bytes, dialect: Dialect) -> Opened:
    kept = {name: headers[name] for name in KEPT_HEADERS if name in headers}
    answer, shown = Opened(status, kept, content), content[:300].decode(errors="replace")
    if status in REFUSALS:
        return answer
    if status != 200:  # a 401, 403 or 429 stays one: a client must not retry the first two, nor ask at once again
        message = f"The model's server answered {status}: {shown}"
        raise SlotFailed(str(status), message, refusal=answer if status >= 400 else None)
    try:
        body = _BODY(content)
    except _UNREADABLE as error:
        raise SlotFailed("invalid_response", f"The model's server sent no valid answer ({error}).") from error
    if (
        body.get("error")
        or body.get("status") == "failed"
        or body.get(dialect.answer) is None
        or body.get("choices") == []
    ):
        raise SlotFailed("error_in_response", f"The model's server answered with an error: {shown}")
    return answer


async def _begun(response: aiohttp.ClientResponse, dialect: Dialect) -> Opened:
    """A stream as soon as its answer begins: an event that only opens it waits for the next one. An error as its
    beginning is a failure like any other."""
    events = _events(response, dialect)
    try:
        begun = event = await anext(events)
        while dialect.opens and type_of(event) in dialect.opens:
            event = await anext(events)
            begun += event
    except StopAsyncIteration:
        raise SlotFailed("empty_stream", "The model's server ended the stream before its first event.") from None
    except StreamBroken as error:
        raise SlotFailed("disconnected", str(error)) from error
    if reply_of(dialect, [begun]).error:
        response.close()
        raise SlotFailed("error_in_response", "The model's server began the stream with an error.")
    return Opened(200, {"Content-Type": response.headers["Content-Type"]}, begun, events, response)


async def _events(response: aiohttp.ClientResponse, dialect: Dialect) -> AsyncIterator[bytes]:
    """Whole events only, as they come; after the last one, [DONE] where a server of chat completions forgot it. Raises
    StreamBroken where the stream ends within an event, or without having finished the answer."""
    rest, sent, done = b"", list[bytes](), False
    try:
        async for chunk in response.content.iter_any():
            *events, rest = _END.split(rest + chunk)
            for event in events:
                done = done or dialect.ended(event)
                sent.append(event + b"\n\n")
                yield sent[-1]
    except _FAULTS as error:
        raise StreamBroken(f"The model's server broke off the stream ({type(error).__name__}).") from error
    finally:
        response.close() if not response.content.at_eof() else response.release()
    if (last := rest.strip()) and dialect.ended(last):
        yield last + b"\n\n"
    elif not done and not last and not dialect.ends and reply_of(dialect, sent).finish_reason:
        yield DONE[0] + b"\n\n"
    elif not done:
        raise StreamBroken("The model's server ended the stream before the answer was finished.")


_BODY = msgspec.json.Decoder(dict[str, Any]).decode
