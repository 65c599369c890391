"""An engine whose models answer at a URL alone, as a library asks them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from pipeline.serving.inference import Answer, AnswerRequest, Decoding, Sampling
from pipeline.storage import ModelRef

from .toy_server import KEY, ToyServer

DECODING = Decoding(
    engine="endpoint", version="1", device="unknown", dtype="unknown", stop_ids=(), context=None, tokens_digest="a" * 64
)


class ServedSession(NamedTuple):
    url: str
    api_key: str
    model_name: str
    decoding: Decoding = DECODING
    extra: Mapping[str, Any] = {"stop_token_ids": [3]}

    def answer(self, requests: Sequence[AnswerRequest], sampling: Sampling, done: Callable[[Answer], None]) -> None:
        raise AssertionError("a library asks the server by itself")


class ServedEngine(NamedTuple):
    server: ToyServer

    @contextmanager
    def open(self, arm: str, model: ModelRef) -> Generator[ServedSession]:
        yield ServedSession(self.server.url, KEY, model.digest)
