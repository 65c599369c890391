"""A server on 127.0.0.1 that speaks the chat-completions protocol, as well or as badly as a test wants."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from pipeline.recipe.rewards import Judge
from pipeline.rewards.judge import Budget, Endpoint, JudgeRequest, JudgeSession, open_judge

MODEL = "examiner-7b"
QUESTION = [{"role": "user", "content": "Say a number."}]
UNLIMITED = (None, None, 0.0, 0.0)
KEY = "sk-4f1d-very-secret"
JUDGE = Judge(model=MODEL, digest="sha256:0f", timeout_s=20, concurrency=4, attempts=3)


class Said(NamedTuple):
    """A response. A body in pieces is sent as they come; `promised` is its length where that is a lie."""

    status: int = 200
    body: bytes | Iterable[bytes] = b""
    headers: dict[str, str] | None = None
    promised: int | None = None


class Request(NamedTuple):
    body: dict[str, Any]
    headers: dict[str, str]


class Server:
    """What was asked, and how many requests were in flight at most."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[Request] = []
        self.sent_bytes = 0
        self.in_flight = self.most_in_flight = 0
        self.closing = threading.Event()
        self.lock = threading.Lock()


Answer = Callable[[Server, Request, int], Said]
"""The response to a request; the number says how many came before it."""


@contextmanager
def serving(answer: Answer) -> Generator[Server]:
    server = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            request = Request(body, dict(self.headers))
            with server.lock:
                place = len(server.requests)
                server.requests.append(request)
                server.in_flight += 1
                server.most_in_flight = max(server.most_in_flight, server.in_flight)
            try:
                said = answer(server, request, place)
            finally:
                with server.lock:  # before the client can know the answer and send its next request
                    server.in_flight -= 1
            self.send(said)

        do_GET = do_POST

        def send(self, said: Said) -> None:
            pieces = [said.body] if isinstance(said.body, bytes) else said.body
            self.send_response(said.status)
            for name, value in (said.headers or {}).items():
                self.send_header(name, value)
            if isinstance(said.body, bytes) or said.promised is not None:
                length = said.promised if said.promised is not None else len(said.body)
                self.send_header("Content-Length", str(length))
            else:
                self.close_connection = True
                self.send_header("Connection", "close")
            try:
                self.end_headers()
                for piece in pieces:
                    self.wfile.write(piece)
                    server.sent_bytes += len(piece)
            except ConnectionError:
                self.close_connection = True
            if said.promised is not None:
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False
        request_queue_size = 64

        def handle_error(self, request: object, client_address: object) -> None:
            pass

    httpd = Quiet(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{httpd.server_port}/v1"
    threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield server
    finally:
        server.closing.set()
        httpd.shutdown()
        httpd.server_close()


def completion(
    content: str | None, *, finish: str = "stop", model: str = MODEL, usage: object = (90, 10), **message: Any
) -> Said:
    """A chat completion as OpenAI's API has it. `usage`: a pair of counts, or what stands in their place."""
    if isinstance(usage, tuple):
        usage = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
    choice = {"index": 0, "message": {"role": "assistant", "content": content, **message}, "finish_reason": finish}
    return envelope({"id": "c-1", "object": "chat.completion", "model": model, "choices": [choice], "usage": usage})


def envelope(value: object) -> Said:
    return Said(200, json.dumps(value).encode(), {"Content-Type": "application/json"})


def scored(score: object, **more: Any) -> Said:
    return completion(json.dumps({"rationale": "because", "score": score}), **more)


def preferring(winner: object) -> Said:
    return completion(json.dumps({"rationale": "because", "winner": winner}))


def always(said: Said) -> Answer:
    return lambda server, request, place: said


def in_turn(*said: Said) -> Answer:
    """One after the other; the last one stays."""
    return lambda server, request, place: said[min(place, len(said) - 1)]


def parts(request: Request) -> dict[str, str]:
    """The fenced data of a request, by name."""
    text = request.body["messages"][-1]["content"]
    result = re.findall(r"^=== (\w{16}) BEGIN (.+?) ===\n(.*?)\n=== \1 END \2 ===$", text, re.DOTALL | re.MULTILINE)
    return {name: json.loads(data) for _, name, data in result}


def asked(n: int) -> list[JudgeRequest]:
    return [JudgeRequest(QUESTION, str(place)) for place in range(n)]


def by_number(server: Server, request: Request, place: int) -> Said:
    """The completion's own number, as a score of 1 to 5."""
    return scored(int(parts(request)["answer to be scored"]) % 5 + 1)


@contextmanager
def judging(
    answer: Answer,
    settings: Judge = JUDGE,
    budget: Budget | None = None,
    log: Callable[[str], None] = lambda line: None,
    key: str = "",
) -> Generator[tuple[Server, JudgeSession]]:
    """A server and the judge that asks it."""
    budget = budget or Budget(*UNLIMITED)
    with (
        serving(answer) as server,
        open_judge(Endpoint(server.url, key), settings, budget, log, backoff_s=0.0001) as judge,
    ):
        yield server, judge
