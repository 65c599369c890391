"""A production beside the embedded one: two model servers, users whose requests a router draws, metrics and traces.

The servers have the metrics page of vLLM and list what they serve; each answer is an OpenTelemetry span in a file.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from pipeline.demo.task import mistaken_solution, problems
from pipeline.serving.endpoint import served_name

EVERY_S = 0.1
A_TURN = 12
"""Requests each `EVERY_S`."""
EDGES = ("0.1", "0.5", "1.0", "+Inf")


class ModelServer:
    """One server of a model that answers rightly as often as it is told, and fails as often."""

    def __init__(self, model_name: str, digest: str, address: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self.name = served_name(model_name, digest)
        self.right, self.failing = 0.9, 0.0
        self.answered = self.failed = 0
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                listed = json.dumps({"data": [{"id": server.name}, {"id": model_name}]})
                body = (server.page() if self.path == "/metrics" else listed).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with suppress(ConnectionError):
                    self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._http = ThreadingHTTPServer(address, Handler)
        self.address = f"{self._http.server_address[0]}:{self._http.server_port}"

    def page(self) -> str:
        """What Prometheus scrapes: the server's own counts, and under the router's name what it did not answer."""
        rows = [
            f'vllm:request_success_total{{model_name="{self.name}",finished_reason="{reason}"}} {count}'
            for reason, count in (("stop", self.answered), ("length", 0), ("abort", 0))
        ]
        bucket = "vllm:e2e_request_latency_seconds_bucket"
        rows += [f'{bucket}{{model_name="{self.name}",le="{le}"}} {self.answered * (le != "0.1")}' for le in EDGES]
        rows.append(f'router_errors_total{{model_name="{self.name}"}} {self.failed}')
        return "\n".join(rows) + "\n"

    def __enter__(self) -> ModelServer:
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()


ERRORS_QUERY = "router_errors_total"


def scrape_config(*servers: ModelServer) -> str:
    targets = json.dumps([server.address for server in servers])
    return f"scrape_configs: [{{job_name: vllm, scrape_interval: 1s, static_configs: [{{targets: {targets}}}]}}]\n"


@contextmanager
def asking(
    servers: Mapping[str, ModelServer], weights: Callable[[], Mapping[str, float]], folder: Path
) -> Generator[Counter[str]]:
    """Users who ask while the block runs. `servers`: by digest; `weights`: of the digests, as the router has them now;
    `folder`: of the traces. Yields how many requests each digest got."""
    folder.mkdir(parents=True, exist_ok=True)
    asked: Counter[str] = Counter()
    ended = threading.Event()
    draw, tasks = random.Random(4), list(problems(3, "train", 500))

    def turn(number: int) -> None:
        now = weights()
        lines: list[str] = []
        for digest in draw.choices(list(now), list(now.values()), k=A_TURN):
            server, task = servers[digest], draw.choice(tasks)
            asked[digest] += 1
            if draw.random() < server.failing:
                server.failed += 1
                continue
            server.answered += 1
            answer = task.solution if draw.random() < server.right else mistaken_solution(task)
            metadata = {"expected_answer": task.answer, "user_consent": "true"}
            lines.append(
                _line(server.name, task.prompt, answer, {"user.id": f"user-{draw.randrange(400)}", **metadata})
            )
        day = datetime.now(UTC).date().isoformat()
        with (folder / f"{day}.jsonl").open("a") as file:
            file.write("".join(lines))

    def ask() -> None:
        number = 0
        while not ended.wait(EVERY_S):
            number += 1
            turn(number)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    try:
        yield asked
    finally:
        ended.set()
        thread.join()


def _line(model: str, prompt: str, answer: str, more: Mapping[str, str]) -> str:
    """One export request with one span of a chat."""
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.response.model": model,
        "gen_ai.input.messages": json.dumps([{"role": "user", "content": prompt}]),
        "gen_ai.output.messages": json.dumps([{"role": "assistant", "content": answer}]),
        **more,
    }
    end = time.time_ns()
    span: dict[str, Any] = {
        "traceId": f"{random.getrandbits(128):032x}",
        "spanId": f"{random.getrandbits(64):016x}",
        "name": f"chat {model}",
        "startTimeUnixNano": str(end - 200_000_000),
        "endTimeUnixNano": str(end),
        "attributes": [{"key": key, "value": {"stringValue": value}} for key, value in attributes.items()],
        "status": {"code": 1},
    }
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}) + "\n"
