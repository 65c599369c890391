"""An OpenAI-compatible endpoint on 127.0.0.1 that answers Ragas' prompts by counting shared words, and misbehaves."""

from __future__ import annotations

import importlib.util
import json
import re
import threading
import zlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from pipeline.recipe.rewards import Rag
from pipeline.rewards.judge.budget import Budget
from pipeline.rewards.rag import RagFinding, Retrieved, open_rag

needs_ragas = pytest.mark.skipif(
    importlib.util.find_spec("ragas") is None, reason="Ragas is not installed: pip install 'preference-tuning[rag]'"
)
GOOD = "Einstein developed the theory of relativity in Bern."
BAD = "Chocolate volcanoes dance under purple moons."
ROW = Retrieved(
    question="Who developed the theory of relativity?",
    contexts=["Albert Einstein developed the theory of relativity while working in Bern."],
    completion=GOOD,
    reference="Einstein developed relativity in Bern.",
)

CHAT, EMBEDDINGS = "/v1/chat/completions", "/v1/embeddings"
TOKENS = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
STOPWORDS = frozenset({"the", "a", "an", "of", "is", "was", "in", "and", "to", "what", "it", "by"})
Fault = Callable[["Server", "_Handler", str, dict[str, Any]], bool]
"""Answers a request in its own way, or returns False."""


class Server:
    """What it was asked, and how it is to fail. A fault may wait for `release`, which is set in the end."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.keys: set[str | None] = set()
        self.fault: Fault = lambda server, handler, path, body: False
        self.release = threading.Event()
        self.most_at_once = 0
        self.now = 0
        self.lock = threading.Lock()


def answer(body: dict[str, Any]) -> Any:
    """What a careful reader would say who knows no more than words: a claim is supported where its words stand."""
    prompt = body["messages"][-1]["content"]
    given = json.loads(prompt.rpartition("\ninput: ")[2].rpartition("\nOutput:")[0])
    match body["response_format"]["json_schema"]["name"]:
        case "StatementGeneratorOutput":
            return {"statements": sentences(given["answer"])}
        case "NLIStatementOutput":
            verdicts = [(claim, supported(claim, given["context"])) for claim in given["statements"]]
            return {"statements": [{"statement": c, "reason": "words", "verdict": v} for c, v in verdicts]}
        case "AnswerRelevanceOutput":
            evasive = int("don't know" in given["response"])
            return {"question": f"What is {given['response']}", "noncommittal": evasive}
        case "ContextPrecisionOutput":
            return {"reason": "words", "verdict": supported(given["answer"], given["context"])}
        case "ContextRecallOutput":
            verdicts = [(claim, supported(claim, given["context"])) for claim in sentences(given["answer"])]
            return {"classifications": [{"statement": c, "reason": "words", "attributed": v} for c, v in verdicts]}
        case other:
            raise AssertionError(other)


def sentences(text: str) -> list[str]:
    return [part.strip() for part in re.split(r"(?<=[.!?])\s+", text) if part.strip()]


def words(text: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", text.lower())) - STOPWORDS


def supported(claim: str, context: str) -> int:
    return int(len(words(claim) & words(context)) >= 0.6 * len(words(claim)))


def embed(text: str) -> list[float]:
    vector = [0.0] * 512
    for word in words(text):
        vector[zlib.crc32(word.encode()) % 512] += 1.0
    return vector


def chat(content: str, model: str = "grader", **changes: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": content}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    return {"model": model, "choices": choices, "usage": TOKENS} | changes


def instead(path: str, status: int, body: Any, **headers: str) -> Fault:
    """The endpoint's only answer to what is asked at `path`."""

    def fault(server: Server, handler: _Handler, asked: str, request: dict[str, Any]) -> bool:
        if asked == path:
            handler.reply(status, body, **headers)
        return asked == path

    return fault


def saying(content: str, form: str | None = None, **changes: Any) -> Fault:
    """What the model always says, or says where an answer of this form is asked for."""

    def fault(server: Server, handler: _Handler, path: str, body: dict[str, Any]) -> bool:
        meant = path == CHAT and form in (None, body["response_format"]["json_schema"]["name"])
        if meant:
            handler.reply(200, chat(content, **changes))
        return meant

    return fault


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.owner
        with server.lock:
            server.requests.append((self.path, body))
            server.keys.add(self.headers.get("Authorization"))
            server.now += 1
            server.most_at_once = max(server.most_at_once, server.now)
        try:
            if not server.fault(server, self, self.path, body):
                self.reply(200, self.sensible(body))
        except (BrokenPipeError, ConnectionResetError):
            pass  # the client went away, as some tests want
        finally:
            with server.lock:
                server.now -= 1

    def sensible(self, body: dict[str, Any]) -> dict[str, Any]:
        if self.path == CHAT:
            return chat(json.dumps(answer(body)), body["model"])
        vectors = [{"index": at, "embedding": embed(text)} for at, text in enumerate(body["input"])]
        return {"model": body["model"], "data": vectors, "usage": {"prompt_tokens": 7, "total_tokens": 7}}

    def reply(self, status: int, body: Any, **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        """Where a redirected POST would arrive."""
        self.owner.requests.append((self.path, {}))
        self.reply(200, {})

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serve() -> Generator[Server]:
    server = Server()
    http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"owner": server}))
    http.daemon_threads = True
    server.url = f"http://127.0.0.1:{http.server_address[1]}/v1"
    threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield server
    finally:
        server.release.set()
        http.shutdown()
        http.server_close()


def unlimited() -> Budget:
    """Dollars are counted and nothing is limited."""
    return Budget(None, None, 1.0, 2.0)


def scored(server: Server, *rows: Retrieved, budget: Budget | None = None, **settings: Any) -> list[RagFinding]:
    """The rows' findings by a session of its own."""
    asked = Rag(model="grader", **{"embeddings": "embedder", **settings})
    with open_rag(server.url, "secret", asked, budget or unlimited(), lambda line: None) as rag:
        return rag.score(rows)
