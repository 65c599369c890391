"""An OpenAI-compatible server on 127.0.0.1 whose model draws words by seed, as well or as badly as a test wants."""

import json
import random
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

NAME = "tuned-7b"
KEY = "sk-4f1d-very-secret"
WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight")


class HttpResponse(NamedTuple):
    """A body in pieces is sent as they come. `promised`: the length that is announced, where that is a lie."""

    status: int = 200
    body: bytes | Iterable[bytes] = b""
    headers: dict[str, str] | None = None
    promised: int | None = None


class HttpRequest(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    connection: int = 0
    """The client's port: one for each connection."""


Change = Callable[["ChatServer", HttpRequest, int], HttpResponse | None]
"""Another response to a chat completion, or None for the right one; the number says how many came before it."""


class ChatServer:
    """What the model is, what was asked, and how many questions were in flight at most."""

    def __init__(self, change: Change, routes: dict[str, Any]) -> None:
        self.url, self.change, self.routes = "", change, routes
        self.requests: list[HttpRequest] = []
        self.sent_bytes = 0
        self.in_flight = self.most_in_flight = 0
        self.closing = threading.Event()
        self.lock = threading.Lock()

    @property
    def asked(self) -> list[HttpRequest]:
        return [request for request in self.requests if request.path == "/v1/chat/completions"]

    def respond(self, request: HttpRequest) -> HttpResponse:
        with self.lock:
            place = len(self.asked)
            self.requests.append(request)
        if request.path != "/v1/chat/completions":
            route = self.routes.get(request.path)
            value = route(request.body) if callable(route) else route
            return HttpResponse(404) if value is None else as_json(value)
        changed = self.change(self, request, place)
        return completion(request.body) if changed is None else changed


def prompt_ids(messages: list[dict[str, str]]) -> list[int]:
    """One id for each word of a role and its text, as this server's template and tokenizer have it."""
    return [sum(word.encode()) + 1 for turn in messages for word in (turn["role"], *turn["content"].split())]


def drawn(body: dict[str, Any], seed: object = None) -> tuple[str, str]:
    """Text and finish_reason; what decides them is the question, the seed and the temperature."""
    sampled = body["seed"] if seed is None else seed
    dice = random.Random(repr((body["messages"], sampled if body["temperature"] > 0 else "likeliest")))
    length = dice.randint(5, 12)
    words = [dice.choice(WORDS) for _ in range(min(length, body["max_tokens"]))]
    return " ".join(words), "stop" if length <= body["max_tokens"] else "length"


def completion(body: dict[str, Any], **changes: Any) -> HttpResponse:
    text, finish = drawn(body, changes.pop("seed", None))
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}
    prompt = len(prompt_ids(body["messages"]))
    usage = {"prompt_tokens": prompt, "completion_tokens": len(text.split())}
    reply = {"id": "c-1", "object": "chat.completion", "model": body["model"], "choices": [choice], "usage": usage}
    choice |= changes.pop("choice", {})
    return as_json(reply | changes)


def trickle(server: ChatServer, request: HttpRequest, place: int) -> HttpResponse:
    """A byte now and then, until the test is over."""

    def drops() -> Generator[bytes]:
        while not server.closing.wait(0.02):
            yield b" "

    return HttpResponse(200, drops(), {"Content-Type": "application/json"})


def as_json(value: object, status: int = 200) -> HttpResponse:
    return HttpResponse(status, json.dumps(value).encode(), {"Content-Type": "application/json"})


VLLM_ROUTES: dict[str, Any] = {
    "/version": {"version": "0.31.0"},
    "/v1/models": {"object": "list", "data": [{"id": NAME, "object": "model"}]},
}


@contextmanager
def chat_server(
    change: Change = lambda server, request, place: None, routes: dict[str, Any] | None = None
) -> Generator[ChatServer]:
    server = ChatServer(change, routes or {})

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            request = HttpRequest(
                self.command, self.path, dict(self.headers), json.loads(body or b"{}"), self.client_address[1]
            )
            with server.lock:
                server.in_flight += 1
                server.most_in_flight = max(server.most_in_flight, server.in_flight)
            try:
                response = server.respond(request)
            finally:
                with server.lock:  # before the client can have the answer and send its next question
                    server.in_flight -= 1
            self.send(response)

        do_GET = do_POST

        def send(self, response: HttpResponse) -> None:
            self.send_response(response.status)
            for name, value in (response.headers or {}).items():
                self.send_header(name, value)
            whole = isinstance(response.body, bytes)
            self.close_connection = not whole or response.promised is not None
            if whole or response.promised is not None:
                length = len(response.body) if response.promised is None else response.promised
                self.send_header("Content-Length", str(length))
            else:
                self.send_header("Connection", "close")
            try:
                self.end_headers()
                for piece in [response.body] if whole else response.body:
                    self.wfile.write(piece)
                    server.sent_bytes += len(piece)
            except ConnectionError:
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Listener(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False
        request_queue_size = 128

        def handle_error(self, request: object, client_address: object) -> None:
            pass

    listener = Listener(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{listener.server_port}/v1"
    threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield server
    finally:
        server.closing.set()
        listener.shutdown()
        listener.server_close()
