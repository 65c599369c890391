"""One try at one slot: an answer is 200 without an error in it; a refusal of this one request (400, 413, 422) is the
caller's to read; all else is a failure of the slot."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple, cast

import aiohttp
import msgspec
from yarl import URL

from pipeline.rollout.gateway.asked import CallerRequest
from pipeline.rollout.gateway.replies import DONE, decode_body, reply_of
from pipeline.rollout.gateway.tables import ServedSlot

REFUSALS = (400, 413, 422)
CONNECT_S = 2.0
KEEP_IDLE_S = 4.0
"""Shorter than the 5 s after which servers like vLLM close an idle connection, lest that happens under a request."""
MOST_CONNECTIONS = 1_000
_END = re.compile(rb"\r?\n\r?\n")
"""Of an event."""


RETRY_HEADERS = ("Retry-After", "Retry-After-Ms", "X-Should-Retry")
"""Of a refusal: what OpenAI's clients (3.54) go by when they ask again."""


class SlotFailed(Exception):
    """No answer. `kind` goes to `error.type`; status, error and headers to a caller who gets nothing else."""

    def __init__(
        self,
        kind: str,
        message: str,
        status: int = 502,
        error: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`error`: fields of the server's own error object; `headers`: those of RETRY_HEADERS that it sent."""
        super().__init__(message)
        self.kind, self.status, self.error, self.headers = kind, status, error or {}, headers or {}


class Opened(NamedTuple):
    """An answer, whole or begun. `events`: what follows `body` of a stream; None where `body` is all."""

    status: int
    content_type: str
    body: bytes
    events: AsyncIterator[bytes] | None = None
    response: aiohttp.ClientResponse | None = None

    def close(self) -> None:
        if self.response is not None:
            self.response.close()


class Upstream:
    """Pooled connections to the slots while its block runs, in one event loop."""

    _session: aiohttp.ClientSession

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._urls: dict[tuple[str, str], URL] = {}

    async def __aenter__(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=MOST_CONNECTIONS, keepalive_timeout=KEEP_IDLE_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=self._timeout_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept-Encoding"),
        )

    async def __aexit__(self, *raised: object) -> None:
        await self._session.close()

    async def ask(self, slot: ServedSlot, asked: CallerRequest, headers: dict[str, str], stream: bool) -> Opened:
        """Raises SlotFailed when there is no answer, or none before the first event of a stream."""
        key = (slot.url, asked.path)
        url = self._urls.get(key) or self._urls.setdefault(key, URL(f"{slot.url.rstrip('/')}/{asked.path}"))
        body = asked.body(slot.name, stream)
        try:
            response = await self._post(url, body, headers)
            if stream and response.status == 200 and response.content_type == "text/event-stream":
                return await _begun(response)
            async with response:
                content = await response.read()
        except _FAULTS as error:
            raise _failed(error) from error
        return _whole(response.status, response.headers, content)

    async def _post(self, url: URL, body: bytes, headers: dict[str, str]) -> aiohttp.ClientResponse:
        """Asked again where the connection was closed before a byte came: it may have been idle for too long."""
        try:
            return await self._session.post(url, data=body, headers=headers, allow_redirects=False)
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            return await self._session.post(url, data=body, headers=headers, allow_redirects=False)


_FAULTS = (aiohttp.ClientError, TimeoutError, OSError, asyncio.IncompleteReadError)


def _failed(error: BaseException) -> SlotFailed:
    if isinstance(error, aiohttp.ServerTimeoutError | TimeoutError):
        return SlotFailed("timeout", "The model's server did not answer in time.", 504)
    if isinstance(error, aiohttp.ClientConnectorError):
        return SlotFailed("unreachable", "The model's server cannot be reached.", 503)
    return SlotFailed("disconnected", f"The model's server broke off ({type(error).__name__}).")


def _whole(status: int, headers: Mapping[str, str], content: bytes) -> Opened:
    content_type = headers.get("Content-Type", "application/json")
    if status in REFUSALS:
        return Opened(status, content_type, content)
    if status != 200:
        raise _refused(status, headers, content)
    try:
        body = decode_body(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SlotFailed("invalid_response", f"The model's server sent no valid answer ({error}).") from error
    if body.is_error or not body.choices:
        shown = (bytes(body.error) or b"no choices")[:300].decode(errors="replace")
        raise SlotFailed("error_in_response", f"The model's server answered with an error: {shown}")
    return Opened(status, content_type, content)


def _refused(status: int, headers: Mapping[str, str], content: bytes) -> SlotFailed:
    """A 401, 403 or 429 reaches the caller as one: a client must neither retry the first two nor ask at once again."""
    try:
        body = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        body = None
    error = cast(dict[str, Any], body).get("error") if isinstance(body, dict) else None
    shown = content[:300].decode(errors="replace")
    return SlotFailed(
        str(status),
        f"The model's server answered {status}: {shown}",
        status if status >= 400 else 502,
        cast(dict[str, Any], error) if isinstance(error, dict) else {},
        {name: headers[name] for name in RETRY_HEADERS if name in headers},
    )


async def _begun(response: aiohttp.ClientResponse) -> Opened:
    """A stream as soon as its first event is there. An error as the first event is a failure like any other."""
    events = _events(response)
    try:
        first = await anext(events)
    except StopAsyncIteration:
        raise SlotFailed("empty_stream", "The model's server ended the stream before its first event.") from None
    except StreamBroken as error:
        raise SlotFailed("disconnected", str(error)) from error
    if reply_of("chat/completions", [first]).error:
        response.close()
        raise SlotFailed("error_in_response", "The model's server began the stream with an error.")
    return Opened(200, response.headers["Content-Type"], first, events, response)


class StreamBroken(Exception):
    """The stream ended before the answer did."""


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Whole events only, as they come; after the last one, [DONE] where the server forgot it. Raises StreamBroken where
    the stream ends within an event, or without having finished the answer."""
    rest, sent, done = b"", list[bytes](), False
    try:
        async for chunk in response.content.iter_any():
            *events, rest = _END.split(rest + chunk)
            for event in events:
                done = done or event.rpartition(b"\n")[2] in DONE
                sent.append(event + b"\n\n")
                yield sent[-1]
    except _FAULTS as error:
        raise StreamBroken(f"The model's server broke off the stream ({type(error).__name__}).") from error
    finally:
        response.close() if not response.content.at_eof() else response.release()
    if rest.strip() in DONE or (not done and not rest.strip() and reply_of("chat/completions", sent).finish_reason):
        yield DONE[0] + b"\n\n"
    elif not done:
        raise StreamBroken("The model's server ended the stream before the answer was finished.")
