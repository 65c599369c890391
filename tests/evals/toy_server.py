"""An OpenAI-compatible server on 127.0.0.1 whose model adds: right or wrong by the seed, as often as a test wants."""

from __future__ import annotations

import json
import random
import re
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "sk-toy-secret"


class ToyServer:
    """`skills`: share of right answers by model name."""

    def __init__(self, skills: dict[str, float]) -> None:
        self.url, self.skills = "", skills
        self.requests: list[dict[str, Any]] = []
        self.keys: set[str] = set()

    def reply(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        question = body["messages"][-1]["content"]
        dice = random.Random(repr((question, body.get("seed"))))
        text = f"It may be {dice.random()}"
        if sum := re.fullmatch(r"What is (\d+) and (\d+)\?", question):
            self.requests.append(body)
            number = int(sum[1]) + int(sum[2])
            text = f"It is {number if dice.random() < self.skills[body['model']] else number + 1}"
        limit = body.get("max_tokens") or body.get("max_completion_tokens") or 99
        words = text.split()[:limit]
        return 200, {
            "id": "c-1",
            "object": "chat.completion",
            "created": 0,
            "model": body["model"],
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": " ".join(words)},
                    "finish_reason": "length" if len(words) < len(text.split()) else "stop",
                }
            ],
            "usage": {"prompt_tokens": 7, "completion_tokens": len(words), "total_tokens": 7 + len(words)},
        }


@contextmanager
def toy_server(skills: dict[str, float]) -> Generator[ToyServer]:
    server = ToyServer(skills)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            server.keys.add(self.headers.get("Authorization", ""))
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.path == "/v1/chat/completions":
                self.send(*server.reply(json.loads(content)))
            else:
                self.send(404, {})

        do_GET = do_POST

        def send(self, status: int, reply: dict[str, Any]) -> None:
            content = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listener.daemon_threads = True
    server.url = f"http://127.0.0.1:{listener.server_port}/v1"
    threading.Thread(target=listener.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        listener.shutdown()
        listener.server_close()
