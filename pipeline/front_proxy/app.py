"""The proxy as an ASGI application: rules, then the cookie, then the server behind."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from pipeline.front_proxy.forward import PROTECTING, Forwarder, UpstreamAway
from pipeline.front_proxy.rules import Denial, SiteRules
from pipeline.front_proxy.sign_in import PATH, SignIn

HEALTH = "/.front-proxy/health"
"""Answered by the proxy itself, to whoever asks: a kubelet knows no host name."""
SIGNED_IN = b'<!doctype html><meta http-equiv="refresh" content="0; url=/"><a href="/">Go on</a>'
"""A page, not a redirect: a strict cookie is not sent along one that began on another site, such as a web terminal."""
SIGN_IN_FIRST = Denial(
    401, "Open the link that the terminal shows. It is good for one browser; each use prints another."
)


class FrontProxy:
    """One site. Without `sign_in` whoever passes the rules is handed on: somebody before it has asked who comes."""

    def __init__(self, rules: SiteRules, address: str, sign_in: SignIn | None) -> None:
        self._rules, self._address, self._sign_in = rules, address, sign_in
        self._forwarder: Forwarder | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        if scope["type"] == "http" and scope["path"] == HEALTH:
            await _answer(send, 200, b"ok", b"text/plain")
            return
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        is_websocket = scope["type"] == "websocket"
        method = "GET" if is_websocket else scope["method"]
        denial = self._rules.denial(method, scope["path"], scope["query_string"], headers, is_websocket)
        if denial is None and self._sign_in is not None:
            if not is_websocket and method == "GET" and scope["path"] == PATH:
                await self._exchange(self._sign_in, scope["query_string"], send)
                return
            is_signed_in, headers = self._sign_in.split_cookies(headers)
            denial = None if is_signed_in else SIGN_IN_FIRST
        if denial is None:
            await self._forward(scope, headers, receive, send)
        elif is_websocket:
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        else:
            await _answer(send, denial.status, f"{denial.reason}\n".encode(), b"text/plain; charset=utf-8")

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        self._forwarder = Forwarder(self._address)
        if self._sign_in is not None:
            self._sign_in.announce_link()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._forwarder.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _exchange(self, sign_in: SignIn, query: bytes, send: Send) -> None:
        cookie = sign_in.exchange(query)
        if cookie is None:
            await _answer(send, SIGN_IN_FIRST.status, f"{SIGN_IN_FIRST.reason}\n".encode(), b"text/plain")
            return
        await _answer(send, 200, SIGNED_IN, b"text/html", (b"set-cookie", cookie.encode()))

    async def _forward(self, scope: Scope, headers: list[tuple[bytes, bytes]], receive: Receive, send: Send) -> None:
        assert self._forwarder is not None, "made at the start"
        if scope["type"] == "websocket":
            await self._forwarder.websocket(scope, headers, receive, send)
            return
        try:
            await self._forwarder.request(scope, headers, receive, send)
        except UpstreamAway:
            again = (b"refresh", b"2")
            await _answer(send, 502, b"The server behind does not answer. It may be starting.\n", b"text/plain", again)


async def _answer(send: Send, status: int, body: bytes, kind: bytes, *more: tuple[bytes, bytes]) -> None:
    headers = [(b"content-type", kind), (b"cache-control", b"no-store"), *PROTECTING, *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
