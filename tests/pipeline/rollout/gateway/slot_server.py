"""An OpenAI-compatible server on 127.0.0.1 that answers as a test wants, down to the bytes of its stream."""

import json
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[["SlotServer", dict[str, Any]], bytes | None]
"""The raw HTTP response to a completion; None for the right one; b"" to break the connection off."""


class SlotServer:
    """One slot: `asked` has the bodies that came."""

    def __init__(self, name: str) -> None:
        self.name, self.url = name, ""
        self.answer: Answer = lambda server, body: None
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.release = threading.Event()
        """For an answer that waits."""

    def respond(self, body: dict[str, Any]) -> bytes:
        changed = self.answer(self, body)
        if changed is not None:
            return changed
        return stream(self.name) if body.get("stream") else whole(self.name)


def response(body: bytes, status: int = 200, kind: str = "application/json", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Type: {kind}", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def whole(name: str) -> bytes:
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": f"It is {name}."}}
    return response(json.dumps({"id": "c-1", "model": name, "choices": [choice], "usage": usage}).encode())


def event(name: str, delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    body = {"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": name, "choices": [choice]}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def events(name: str) -> list[bytes]:
    words = [event(name, {"content": word}) for word in ("It ", "is ", f"{name}.")]
    return [event(name, {"role": "assistant", "content": ""}), *words, event(name, {}, "stop"), b"data: [DONE]\n\n"]


def stream(name: str, sent: list[bytes] | None = None, **headers: str) -> bytes:
    """A stream that ends where the connection does."""
    head = "HTTP/1.1 200 X\r\nContent-Type: text/event-stream\r\nConnection: close\r\n"
    head += "".join(f"{key.replace('_', '-')}: {value}\r\n" for key, value in headers.items())
    return head.encode() + b"\r\n" + b"".join(events(name) if sent is None else sent)


def cut(raw: bytes) -> bytes:
    """A stream that promises more than comes."""
    return raw.replace(b"Connection: close\r\n", b"Content-Length: 1000000\r\nConnection: close\r\n")


@contextmanager
def slot_server(name: str, port: int = 0) -> Generator[SlotServer]:
    server = SlotServer(name)
    connections: list[socket.socket] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            self.wfile.write(response(json.dumps({"data": [{"id": server.name}]}).encode()))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.asked.append(body)
            server.headers.append(dict(self.headers))
            server.paths.append(self.path)
            raw = server.respond(body)
            self.close_connection = not raw or b"Connection: close" in raw
            try:
                self.wfile.write(raw)
            except ConnectionError:
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Listener(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def process_request(self, request: Any, client_address: Any) -> None:
            connections.append(request)
            super().process_request(request, client_address)

    listener = Listener(("127.0.0.1", port), Handler)
    server.url = f"http://127.0.0.1:{listener.server_port}/v1"
    thread = threading.Thread(target=listener.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.release.set()
        listener.shutdown()
        listener.server_close()
        for connection in connections:  # a server that dies takes its connections along
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
