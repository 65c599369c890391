"""The proxy as a process, before a server on a Unix socket that writes down what reaches it."""

from __future__ import annotations

import asyncio
import http.client
import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from tests.ports import held_port

UP_S = 90


class Behind:
    """A server like Dagster's: GraphQL by GET and POST, for whoever asks. `reached`: the requests that it answered."""

    def __init__(self, socket: Path) -> None:
        self.ended = threading.Event()
        self.reached: list[tuple[str, str, bytes, dict[str, str]]] = []
        routes = [
            WebSocketRoute("/graphql", self._echo),
            Route("/stream", self._stream),
            Route("/endless", self._endless),
            Route("/{path:path}", self._answer, methods=["GET", "POST", "PUT", "DELETE"]),
        ]
        config = uvicorn.Config(Starlette(routes=routes), uds=str(socket), log_level="error")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)

    async def _answer(self, request: Request) -> JSONResponse:
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        self.reached.append((request.method, target, await request.body(), dict(request.headers)))
        return JSONResponse({"path": target}, headers={"X-Frame-Options": "ALLOWALL", "X-Own": "kept"})

    async def _stream(self, request: Request) -> StreamingResponse:
        async def pieces() -> Any:
            for number in range(3):
                yield f"{number}\n"

        return StreamingResponse(pieces(), media_type="text/event-stream")

    async def _endless(self, request: Request) -> StreamingResponse:
        async def pieces() -> Any:
            try:
                while True:
                    yield "more\n"
                    await asyncio.sleep(0.01)
            finally:
                self.ended.set()

        return StreamingResponse(pieces(), media_type="text/event-stream")

    async def _echo(self, websocket: WebSocket) -> None:
        self.reached.append(("WEBSOCKET", websocket.url.path, b"", dict(websocket.headers)))
        await websocket.accept(subprotocol="graphql-ws")
        with suppress(WebSocketDisconnect):
            while True:
                await websocket.send_text(f"echo {await websocket.receive_text()}")


class RunningProxy:
    """The process, its port and the links that it has printed."""

    def __init__(self, behind: Behind, socket: Path, port: int, sign_in: bool, to: str = "") -> None:
        self.behind, self.port, self.root = behind, port, f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "pipeline.front_proxy", "--listen", f"127.0.0.1:{port}", "--with-parent"]
        command += ["--to", to or f"unix:{socket}", "--hosts", f"127.0.0.1:{port}", "--origins", self.root]
        self.process = subprocess.Popen(
            command + (["--sign-in", "Dagster"] if sign_in else []), stdout=subprocess.PIPE, text=True
        )
        self._links: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        deadline = time.monotonic() + UP_S
        while not self._is_up():
            assert self.process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            name, link = line.split()
            assert name == "Dagster"
            self._links.put(link)

    def _is_up(self) -> bool:
        with suppress(OSError):
            return self.ask("GET", "/.front-proxy/health")[0] == 200
        return False

    def link(self) -> str:
        """The next link that it prints."""
        return self._links.get(timeout=UP_S)

    def ask(
        self, method: str, target: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body. Names of headers are written with `_` for `-`."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=UP_S)
        try:
            given = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, target, body, given)
            response = connection.getresponse()
            return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
        finally:
            connection.close()

    def cookie(self) -> str:
        """Of a browser that opened the next link."""
        _, headers, _ = self.ask("GET", self.link().removeprefix(self.root))
        return headers["set-cookie"].partition(";")[0]

    def mutation(self, **headers: str) -> int:
        body = json.dumps({"query": "mutation { launch }"}).encode()
        return self.ask("POST", "/graphql", body, **{"Content_Type": "application/json"} | headers)[0]

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(UP_S)


@pytest.fixture
def start_proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., RunningProxy]]:
    """Starts a proxy before a new server; both end with the test."""
    started: list[RunningProxy] = []

    def start(sign_in: bool = True, to: str = "") -> RunningProxy:
        socket = tmp_path_factory.mktemp("behind") / "server.sock"
        with held_port() as held:
            behind = Behind(socket)
            started.append(RunningProxy(behind, socket, held.getsockname()[1], sign_in, to))
        return started[-1]

    yield start
    for proxy in started:
        proxy.end()
        proxy.behind.server.should_exit = True
        proxy.behind.thread.join(UP_S)


@pytest.fixture
def proxy(start_proxy: Callable[..., RunningProxy]) -> RunningProxy:
    return start_proxy()
