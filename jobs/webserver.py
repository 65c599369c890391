"""Dagster's web server for its own pages alone: `python -m jobs.webserver`, with the options of `dagster-webserver`.

It has no users, so it refuses what the page of another site can make a browser send: another Host or Origin, GraphQL by
GET, websockets without Origin, and frames. DAGSTER_ALLOWED_HOSTS names the hosts that it is asked by, divided by
commas; by default 127.0.0.1 and localhost."""

from collections.abc import Iterable

from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from assets.environment import environment
from pipeline.core.door import foreign_header, header_values

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


def main() -> None:
    from dagster_webserver import cli
    from dagster_webserver.webserver import DagsterWebserver

    build_middleware = DagsterWebserver.build_middleware
    hosts = (environment().dagster_hosts or "127.0.0.1,localhost").replace(",", " ").split()

    def guarded(self: DagsterWebserver) -> list[Middleware]:
        return [Middleware(SameOriginMiddleware, hosts=hosts), *build_middleware(self)]

    DagsterWebserver.build_middleware = guarded
    cli.main()


if __name__ == "__main__":
    main()
