"""An OpenAI-compatible server on 127.0.0.1 whose models are real ones, drawn by this project's transformers engine."""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.demo import MODEL_DIR
from pipeline.recipe.serving import TransformersServing
from pipeline.serving.inference import Answer, AnswerRequest, Sampling
from pipeline.serving.transformers_engine import TransformersEngine
from pipeline.storage import ModelRef, digest_json

MOST_AT_ONCE = 64


class Question(NamedTuple):
    request: AnswerRequest
    sampling: Sampling
    answer: queue.SimpleQueue[Answer]


class ModelServer:
    """`folder_of`: the directory of a name's model; None where the server has no such model (yet)."""

    def __init__(self, folder_of: Callable[[str], Path | None]) -> None:
        self.url, self._folder_of = "", folder_of
        self.asked: Counter[str] = Counter()
        """How often each question was asked: by model, messages and seed."""
        self._queues: dict[Path, queue.SimpleQueue[Question]] = {}
        self._lock = threading.Lock()

    def reply(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        folder = self._folder_of(body["model"])
        if folder is None:
            return 404, {"error": {"message": f"The model {body['model']} does not exist."}}
        with self._lock:
            self.asked[digest_json([body["model"], body["messages"], body["seed"]])] += 1
            if folder not in self._queues:
                self._queues[folder] = queue.SimpleQueue()
                threading.Thread(target=self._draw, args=(folder,), daemon=True).start()
        limit = body.get("max_completion_tokens") or body["max_tokens"]
        sampling = Sampling(temperature=body["temperature"], max_completion_tokens=limit)
        question = Question(
            AnswerRequest(key="", messages=body["messages"], seed=body["seed"]), sampling, queue.SimpleQueue()
        )
        self._queues[folder].put(question)
        answer = question.answer.get()
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": answer.text},
            "finish_reason": answer.stop,
        }
        tokens = {"prompt_tokens": answer.prompt_tokens, "completion_tokens": answer.tokens}
        usage = {**tokens, "total_tokens": sum(tokens.values())}
        reply = {"id": "c-1", "object": "chat.completion", "created": 0, "model": body["model"]}
        return 200, {**reply, "choices": [choice], "usage": usage}

    def _draw(self, folder: Path) -> None:
        """Whatever waits is one batch; a batch has one sampling."""
        model, waiting = ModelRef(uri=str(folder), digest=str(folder)), self._queues[folder]
        engine = TransformersEngine(TransformersServing(batch_size=MOST_AT_ONCE), lambda line: None)
        with engine.open("", model) as session:
            while True:
                batch = [waiting.get()]
                time.sleep(0.02)  # the others of the same moment
                while len(batch) < MOST_AT_ONCE and not waiting.empty():
                    batch.append(waiting.get())
                for sampling in {repr(each.sampling): each.sampling for each in batch}.values():
                    alike = [each for each in batch if each.sampling == sampling]
                    requests = [each.request.model_copy(update={"key": str(n)}) for n, each in enumerate(alike)]
                    session.answer(requests, sampling, lambda a, alike=alike: alike[int(a.key)].answer.put(a))


@contextmanager
def model_server(folder_of: Callable[[str], Path | None], port: int = 0) -> Generator[ModelServer]:
    """Its models are loaded when they are first asked for; their processes end with this one."""
    server = ModelServer(folder_of)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
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
            try:
                self.end_headers()
                self.wfile.write(content)
            except ConnectionError:  # who asked was killed
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Listener(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False
        request_queue_size = 128

        def handle_error(self, request: object, client_address: object) -> None:
            print(sys.exception(), file=sys.stderr)

    listener = Listener(("127.0.0.1", port), Handler)
    server.url = f"http://127.0.0.1:{listener.server_port}/v1"
    threading.Thread(target=listener.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        listener.shutdown()
        listener.server_close()


def of_data_root(root: Path) -> Callable[[str], Path | None]:
    """`champion` is the embedded model, `candidate` what the newest training below the data root has left."""

    def folder(name: str) -> Path | None:
        if name == "champion":
            return MODEL_DIR
        trained = sorted(root.glob("iterations/*/training/model"), key=lambda path: path.stat().st_mtime)
        return trained[-1] if trained and name == "candidate" else None

    return folder
