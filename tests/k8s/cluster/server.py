"""The tests' API server: HTTP on 127.0.0.1 over one storage, with a token, a record of the requests, and faults.

Answers as kube-apiserver was seen to answer. Its own token may do everything, that of an account what it is given.
"""

from __future__ import annotations

import json
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from ...ports import LOOPBACK, held_port
from .access import Account, anybody
from .discovery import HEALTH, discovered
from .faults import Call, Faults, When
from .kinds import Refused
from .podcalls import Logs
from .reading import Request, whole
from .routes import Answer, Routes, call_of
from .storage import Storage


class Asked(NamedTuple):
    """One request that the server got."""

    verb: str
    """get, list, watch, create, update, patch, delete, deletecollection; "" where the path is no resource's."""
    path: str
    query: dict[str, str]
    status: int
    """Of the answer; 0: none was given."""
    at: float
    """When it came, by time.monotonic()."""
    method: str
    call: Call


class Dropped(Exception):
    """The connection ends here, without an answer."""


class Server:
    """One API server; `storage` and `faults` may be used while it serves."""

    def __init__(self, storage: Storage | None = None, tls: tuple[Path, Path] | None = None) -> None:
        """`tls`: the files of a certificate for 127.0.0.1 and of its key."""
        self.storage = storage or Storage()
        self.faults = Faults()
        self.requests: list[Asked] = []
        self.errors: list[Exception] = []
        """Of its own, answered with 500: a test that ends with one fails."""
        self.token = secrets.token_hex(16)
        self._accounts: dict[str, Account] = {}
        self._routes = Routes(self.storage)
        self._held = held_port()
        self._tls, self._port, self._listener = tls, self._held.getsockname()[1], None
        self._number, self.lock = 0, threading.Lock()
        self.connections: set[Any] = set()
        self._stop = threading.Event()
        self.open()

    @property
    def logs(self) -> Logs | None:
        """The kubelet's: the file of a pod's log by namespace and name."""
        return self._routes.logs

    @logs.setter
    def logs(self, logs: Logs | None) -> None:
        self._routes.logs = logs

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://{LOOPBACK}:{self._port}"

    def kubeconfig(self, path: Path, namespace: str = "default", account: Account | None = None) -> Path:
        """Write a kubeconfig with the server and its token, or one of an account; returns its path."""
        token = self.token
        if account is not None:
            token = secrets.token_hex(16)
            self._accounts[token] = account
        cluster = {"server": self.url} | ({"certificate-authority": str(self._tls[0])} if self._tls else {})
        context = {"cluster": "tests", "user": "tests", "namespace": namespace}
        config = {
            **{"apiVersion": "v1", "kind": "Config", "current-context": "tests"},
            "clusters": [{"name": "tests", "cluster": cluster}],
            "users": [{"name": "tests", "user": {"token": token}}],
            "contexts": [{"name": "tests", "context": context}],
        }
        path.write_text(json.dumps(config))  # JSON is YAML
        path.chmod(0o600)
        return path

    def open(self) -> None:
        """Listen, on the same port as before."""
        assert self._listener is None
        self._stop = threading.Event()
        listener = _Listener((LOOPBACK, self._port), _handler(self))
        if self._tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*self._tls)
            listener.socket = context.wrap_socket(listener.socket, server_side=True, do_handshake_on_connect=False)
        self._listener = listener
        threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self) -> None:
        """Away: nobody listens, every connection ends. What is stored stays."""
        if self._listener is None:
            return
        self._listener.shutdown()
        self._listener.server_close()
        self._listener = None
        self._end(self._stop)
        with self.lock:
            connections, self.connections = self.connections, set()
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def free(self) -> None:
        """Give the port back."""
        self._held.close()

    @contextmanager
    def away(self) -> Generator[None]:
        """Refuses connections inside the block."""
        self.close()
        try:
            yield
        finally:
            self.open()

    def close_watches(self) -> None:
        """End every watch and every followed log, as a restarted API server does; connections stay."""
        stop, self._stop = self._stop, threading.Event()
        self._end(stop)

    def _end(self, stop: threading.Event) -> None:
        stop.set()
        with self.storage.changed:
            self.storage.changed.notify_all()

    def count(self, verb: str = "", kind: str = "") -> int:
        """Requests of that verb and kind ("": any)."""
        return sum(verb in ("", asked.verb) and kind in ("", asked.call.kind) for asked in list(self.requests))

    def answer(self, request: Request, token: str) -> Answer:
        """Handle and record it. Raises Dropped."""
        at, status, call = time.monotonic(), 0, Call("", "")
        with self.lock:
            self._number += 1
            number = self._number
        try:
            try:
                account = self._accounts.get(token)
                if request.path not in (*HEALTH, "/version") and token != self.token and account is None:
                    raise Refused(401, "Unauthorized", "Unauthorized")
                body = discovered(request.path) if request.method == "GET" else None
                call = call if body is not None else call_of(request)
                answer = self._faulty(number, request, call, body, account)
            except Refused as refusal:
                answer = Answer(refusal.code, refusal.status())
            except Dropped:
                raise
            except Exception as error:  # the boundary of a request: the client of a broken server gets an answer too
                self.errors.append(error)
                answer = Answer(500, Refused(500, "InternalError", f"Internal error occurred: {error!r}").status())
            status = answer.code
            self._hook(number, call, "after")
        except Dropped:
            self._record(request, 0, at, call)
            raise
        self._record(request, status, at, call)
        return answer

    def _faulty(self, number: int, request: Request, call: Call, body: Any, account: Account | None) -> Answer:
        self._hook(number, call, "before")
        fault = self.faults.meeting(call)
        if fault and fault.hang_s and self._stop.wait(fault.hang_s):
            raise Dropped  # the server went meanwhile, and what hung with it
        if fault and fault.drop == "before":
            raise Dropped
        if fault and fault.status:
            raise fault.refusal(call)
        stop = self._stop
        if call.verb == "watch" and request.query.get("timeoutSeconds"):
            stop = _Either(stop, whole(request.query, "timeoutSeconds"))
        if account:
            account.authorize(call)
        admit = account.admit if account else anybody
        answer = Answer(200, body) if body is not None else self._routes.answer(request, call, stop, admit)
        if fault and fault.drop == "after":
            raise Dropped
        return answer

    def _hook(self, number: int, call: Call, when: When) -> None:
        if self.faults.on_request and self.faults.on_request(number, call, when):
            raise Dropped

    def _record(self, request: Request, status: int, at: float, call: Call) -> None:
        self.requests.append(Asked(call.verb, request.path, request.query, status, at, request.method, call))


class _Either(threading.Event):
    """Set by another event, or by the time."""

    def __init__(self, other: threading.Event, seconds: float) -> None:
        super().__init__()
        self._other, self._until = other, time.monotonic() + seconds

    def is_set(self) -> bool:
        return self._other.is_set() or time.monotonic() >= self._until


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that are killed are what the tests are about."""


def _handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def setup(self) -> None:
            super().setup()
            with server.lock:
                server.connections.add(self.connection)

        def finish(self) -> None:
            with server.lock:
                server.connections.discard(self.connection)
            super().finish()

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: `requests` is the record."""

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = urlsplit(self.path)
            content_type = (self.headers.get("Content-Type") or "").partition(";")[0].strip()
            query = dict(parse_qsl(parts.query, keep_blank_values=True))
            agent = self.headers.get("User-Agent") or ""
            request = Request(self.command, parts.path, query, content_type, body, agent)
            token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
            try:
                self._send(server.answer(request, token))
            except (Dropped, OSError):
                self.close_connection = True
                with suppress(OSError):
                    self.connection.shutdown(socket.SHUT_RDWR)
            except Exception as error:  # the boundary of a stream: its headers are out, the test is told
                self.close_connection = True
                server.errors.append(error)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

        def _send(self, answer: Answer) -> None:
            text = isinstance(answer.body, str)
            body = answer.body.encode() if text else json.dumps(answer.body).encode()
            self.send_response(answer.code)
            self.send_header("Content-Type", "text/plain" if text else answer.content_type)
            for warning in answer.warnings:
                self.send_header("Warning", f"299 - {json.dumps(warning)}")
            retry = isinstance(answer.body, dict) and answer.body.get("details", {})
            if retry and "retryAfterSeconds" in retry:
                self.send_header("Retry-After", str(retry["retryAfterSeconds"]))
            if answer.stream is None:
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                return
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for piece in answer.stream:
                if piece:
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")

    return Handler


@contextmanager
def api_server(storage: Storage | None = None, tls: tuple[Path, Path] | None = None) -> Generator[Server]:
    """A server for the block."""
    server = Server(storage, tls)
    try:
        yield server
    finally:
        server.close()
        server.free()
    if server.errors:
        raise server.errors[0]
