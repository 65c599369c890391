"""What passed, handed on to the server behind, and its answer handed back as it comes: streams and websockets too.

Refuses to change either, but for the headers of the hop (RFC 9110, section 7.6.1) and those that keep the answer from
being shown or read in another site's page.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import suppress
from urllib.parse import quote

import aiohttp
from multidict import CIMultiDict
from starlette.types import Message, Receive, Scope, Send
from yarl import URL

HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te", b"trailer", b"upgrade",
     b"transfer-encoding", b"proxy-connection"}
)  # fmt: skip
OF_WEBSOCKET = frozenset({b"sec-websocket-key", b"sec-websocket-version", b"sec-websocket-extensions",
                          b"sec-websocket-protocol"})  # fmt: skip
PROTECTING = (
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"SAMEORIGIN"),
    (b"referrer-policy", b"same-origin"),
)
"""Set on every answer, whatever the server behind says of them."""
NEVER_SENT = frozenset({1005, 1006, 1015})
"""Codes that tell a connection's own side how it ended (RFC 6455, section 7.4.1)."""
MOST_CONNECTIONS = 200
CONNECT_S = 5.0
WAIT_S = 15.0
"""For one of those connections."""
MOST_MESSAGE_BYTES = 16 << 20
"""Of a websocket, in either direction."""


class UpstreamAway(Exception):
    """The server behind gave no answer."""


class Forwarder:
    """Connections to one server behind: `http://host:port`, or `unix:/path` of a socket. Lives in one event loop."""

    def __init__(self, address: str) -> None:
        if address.startswith("unix:"):
            connector: aiohttp.BaseConnector = aiohttp.UnixConnector(
                address.removeprefix("unix:"), limit=MOST_CONNECTIONS
            )
            self._root = "http://unix"
        else:
            connector, self._root = aiohttp.TCPConnector(limit=MOST_CONNECTIONS), address.rstrip("/")
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None, connect=WAIT_S, sock_connect=CONNECT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept-Encoding", "Accept", "Content-Type"),
        )

    async def close(self) -> None:
        await self._session.close()

    async def request(self, scope: Scope, headers: Iterable[tuple[bytes, bytes]], receive: Receive, send: Send) -> None:
        """Raises UpstreamAway before anything was sent; a server that breaks off later breaks the answer off, and a
        caller who hangs up ends it."""
        passed = _passed(headers)
        is_read = asyncio.Event()
        body = _body(receive, is_read) if "content-length" in passed or _is_chunked(headers) else None
        try:
            response = await self._session.request(
                scope["method"], self._url(scope), headers=passed, data=body, allow_redirects=False
            )
        except (aiohttp.ClientError, OSError) as error:
            raise UpstreamAway from error
        async with response:
            answer = asyncio.create_task(_answer(response, send))
            ends = [answer]
            if body is None or is_read.is_set():  # else the body's reader would miss what this one receives
                ends.append(asyncio.create_task(_hang_up(receive)))
            try:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in ends:
                    task.cancel()
            with suppress(asyncio.CancelledError):
                await answer

    async def websocket(
        self, scope: Scope, headers: Iterable[tuple[bytes, bytes]], receive: Receive, send: Send
    ) -> None:
        """Both directions until one side ends. A server that is away closes the caller's side."""
        await receive()  # websocket.connect
        try:
            upstream = await self._session.ws_connect(
                self._url(scope),
                headers=_passed(headers, HOP | OF_WEBSOCKET),
                protocols=scope["subprotocols"],
                max_msg_size=MOST_MESSAGE_BYTES,
            )
        except (aiohttp.ClientError, OSError):
            await send({"type": "websocket.close", "code": 1013})
            return
        async with upstream:
            await send({"type": "websocket.accept", "subprotocol": upstream.protocol})
            to, back = asyncio.create_task(_to(upstream, receive)), asyncio.create_task(_back(upstream, send))
            _, waiting = await asyncio.wait((to, back), return_when=asyncio.FIRST_COMPLETED)
            for task in waiting:
                task.cancel()
            for task in (to, back):
                with suppress(asyncio.CancelledError, aiohttp.ClientError, OSError):
                    await task

    def _url(self, scope: Scope) -> URL:
        path = scope.get("raw_path") or quote(scope["path"]).encode()
        query = b"?" + scope["query_string"] if scope["query_string"] else b""
        return URL(self._root + (path + query).decode("latin-1"), encoded=True)


def _passed(headers: Iterable[tuple[bytes, bytes]], without: frozenset[bytes] = HOP) -> CIMultiDict[str]:
    return CIMultiDict((n.decode("latin-1"), v.decode("latin-1")) for n, v in headers if n not in without)


def _is_chunked(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(name == b"transfer-encoding" for name, _ in headers)


def _protected(response: aiohttp.ClientResponse) -> list[tuple[bytes, bytes]]:
    ours = {name for name, _ in PROTECTING}
    raw = [(name.lower(), value) for name, value in response.raw_headers]
    return [each for each in raw if each[0] not in HOP | ours] + list(PROTECTING)


async def _answer(response: aiohttp.ClientResponse, send: Send) -> None:
    await send({"type": "http.response.start", "status": response.status, "headers": _protected(response)})
    async for piece in response.content.iter_any():
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _hang_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body(receive: Receive, is_read: asyncio.Event) -> AsyncGenerator[bytes]:
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise aiohttp.ClientConnectionError("the caller hung up")
        more = message.get("more_body", False)
        if piece := message.get("body", b""):
            yield piece
    is_read.set()


async def _to(upstream: aiohttp.ClientWebSocketResponse, receive: Receive) -> None:
    while (message := await receive())["type"] == "websocket.receive":
        if (text := message.get("text")) is not None:
            await upstream.send_str(text)
        else:
            await upstream.send_bytes(message["bytes"])


async def _back(upstream: aiohttp.ClientWebSocketResponse, send: Send) -> None:
    async for message in upstream:
        if message.type == aiohttp.WSMsgType.ERROR:
            break
        key = "text" if message.type == aiohttp.WSMsgType.TEXT else "bytes"
        passed: Message = {"type": "websocket.send", key: message.data}
        await send(passed)
    code = upstream.close_code or 1000
    await send({"type": "websocket.close", "code": 1011 if code in NEVER_SENT else code})
