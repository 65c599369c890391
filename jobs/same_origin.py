"""ASGI middleware for a web server without users: refuses what the page of another site can make a browser send.

A browser sends the Host that it was given and the Origin of the page that asks, and no page can change either. So the
Host has to be one of ours (a foreign name that resolves to this machine is DNS rebinding), and whatever changes state
has to come from a page of the same host: requests other than GET, and websockets. GraphQL by GET is refused, because a
link or an image could carry a mutation. Other sites may not show the pages in a frame.
"""

from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeline.gateway.door import host_name

HEALTH = "/server_info"
"""Answered under any Host: a kubelet asks by the pod's address. It shows versions."""
READING = ("GET", "HEAD", "OPTIONS")


class SameOriginMiddleware:
    """`hosts`: names without a port; every port of a name is allowed."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str]) -> None:
        self._app, self._hosts = app, frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_unframed(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-frame-options"] = "SAMEORIGIN"
            await send(message)

        if reason := self._refusal(scope):
            await PlainTextResponse(f"{reason}\n", 403)(scope, receive, send)
        else:
            await self._app(scope, receive, send_unframed)

    def _refusal(self, scope: Scope) -> str:
        """Why the request is refused; "" for one that is not. Nothing of the request is repeated."""
        if scope["type"] == "lifespan":
            return ""
        headers, path = Headers(scope=scope), scope["path"]
        host, origin = headers.get("host", "").lower(), headers.get("origin")
        is_websocket = scope["type"] == "websocket"
        method = "WEBSOCKET" if is_websocket else scope["method"]
        if host_name(host.encode("latin-1")) not in self._hosts and not (method == "GET" and path == HEALTH):
            return "The host of this address is not allowed. Add it to DAGSTER_ALLOWED_HOSTS, or use one that is there."
        if method in READING:
            is_query = path.rstrip("/").endswith("/graphql") and scope["query_string"]
            return "GraphQL by GET is not allowed. Send the query by POST." if is_query else ""
        if origin is None:  # a script: browsers send it with all of these
            return "A websocket needs the header Origin." if is_websocket else ""
        if origin.lower().partition("://")[2] != host:
            return "The page that sent this is not of this host (header Origin)."
        return ""
