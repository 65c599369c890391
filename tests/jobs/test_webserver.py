"""Which requests reach the web server, by their heads."""

import asyncio
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from jobs.webserver import SameOriginMiddleware

HOST = "127.0.0.1:3000"
OWN = {"host": HOST, "origin": f"http://{HOST}"}


def status(method: str, target: str, headers: dict[str, str]) -> int:
    """Of the answer; the server behind answers 200, and closes a websocket that it gets."""
    path, _, query = target.partition("?")
    sent: list[Message] = []

    async def server(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> Message:
        return {}

    async def send(message: Message) -> None:
        sent.append(message)

    scope: dict[str, Any] = {"type": "http", "method": method}
    if method == "WEBSOCKET":
        scope = {"type": "websocket", "extensions": {"websocket.http.response": {}}}
    scope |= {"path": path, "query_string": query.encode()}
    scope["headers"] = [(name.encode(), value.encode()) for name, value in headers.items()]
    asyncio.run(SameOriginMiddleware(server, ["127.0.0.1", "Dagster.example.com", "[::1]"])(scope, receive, send))
    if sent[0]["status"] == 200:
        assert (b"x-frame-options", b"SAMEORIGIN") in sent[0]["headers"]
    return sent[0]["status"]


@pytest.mark.parametrize(("method", "target", "headers"), [
    ("GET", "/runs?view=all", {"host": HOST}),
    ("GET", "/graphql", {"host": HOST}),  # the page for queries
    ("POST", "/graphql?op=RootQuery", OWN),
    ("POST", "/graphql", {"host": HOST}),  # a script: no browser leaves the Origin out
    ("POST", "/graphql", {"host": "[::1]:3000", "origin": "http://[::1]:3000"}),
    ("POST", "/graphql", {"host": "dagster.example.com", "origin": "https://dagster.example.com"}),
    ("POST", "/graphql", {"host": "127.0.0.1:8080", "origin": "http://127.0.0.1:8080"}),  # a tunnel
    ("WEBSOCKET", "/graphql", OWN),
    ("GET", "/server_info", {"host": "10.0.0.7:3000"}),
])  # fmt: skip
def test_what_the_own_page_sends_passes(method: str, target: str, headers: dict[str, str]) -> None:
    assert status(method, target, headers) == 200


@pytest.mark.parametrize(("method", "target", "headers"), [
    ("GET", "/graphql?query=mutation{x}", {"host": HOST}),
    ("HEAD", "/graphql?query=mutation{x}", {"host": HOST}),
    ("GET", "/prefix/graphql/?query=mutation{x}", {"host": HOST}),
    ("GET", "/", {}),
    ("GET", "/", {"host": "rebound.example"}),
    ("GET", "/", {"host": "127.0.0.1.rebound.example:3000"}),
    ("GET", "/", {"host": "127.0.0.1:3000@rebound.example"}),
    ("POST", "/graphql", {"host": "rebound.example:3000", "origin": "http://rebound.example:3000"}),
    ("POST", "/server_info", {"host": "rebound.example"}),
    ("POST", "/graphql", {**OWN, "origin": "https://rebound.example"}),
    ("POST", "/graphql", {**OWN, "origin": "http://127.0.0.1:5000"}),
    ("POST", "/graphql", {**OWN, "origin": "null"}),
    ("POST", "/report_asset_materialization/a", {**OWN, "origin": "http://localhost:3000"}),
    ("GET", "/", {**OWN, "origin": "https://rebound.example"}),
    ("PROPFIND", "/", {**OWN, "origin": "https://rebound.example"}),
    ("WEBSOCKET", "/graphql", {**OWN, "origin": "https://rebound.example"}),
    ("WEBSOCKET", "/graphql", {"host": HOST}),
])  # fmt: skip
def test_what_the_page_of_another_site_can_send_is_refused(method: str, target: str, headers: dict[str, str]) -> None:
    assert status(method, target, headers) == 403
