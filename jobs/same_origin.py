"""ASGI middleware for a web server without users: refuses what the page of another site can make a browser send, such
as GraphQL by GET, websockets without Origin and frames. The rule of Host and Origin is
pipeline/rollout/gateway/door.py's."""

from collections.abc import Iterable

from starlette.datastructures import MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeline.rollout.gateway.door import foreign_header, header_values

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
        is_websocket, path = scope["type"] == "websocket", scope["path"]
        method = "WEBSOCKET" if is_websocket else scope["method"]
        foreign = foreign_header(scope, self._hosts)
        if foreign == "host" and not (method == "GET" and path == HEALTH):
            return "The host of this address is not allowed. Add it to DAGSTER_ALLOWED_HOSTS, or use one that is there."
        if foreign == "origin":
            return "The page that sent this is not of this host (header Origin)."
        if is_websocket and not header_values(scope, b"origin"):
            return "A websocket needs the header Origin."
        is_query = path.rstrip("/").endswith("/graphql") and scope["query_string"]
        return "GraphQL by GET is not allowed. Send the query by POST." if method in READING and is_query else ""
