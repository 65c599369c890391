"""A real web server on 127.0.0.1 that takes notices, as a chat's incoming webhook does."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Webhook:
    """What arrived, in order. `status` is answered; `before` runs once a message is there and no answer is."""

    url: str = ""
    status: int = 200
    before: Callable[[], None] = lambda: None
    messages: list[str] = field(default_factory=list)


@contextmanager
def webhook() -> Generator[Webhook]:
    hook = Webhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert set(body) == {"text"}
            hook.messages.append(body["text"])
            hook.before()
            self.send_response(hook.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    hook.url = f"http://127.0.0.1:{server.server_address[1]}/services/secret"
    try:
        yield hook
    finally:
        server.shutdown()
        server.server_close()
