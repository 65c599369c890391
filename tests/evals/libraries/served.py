"""A session whose model answers at a URL alone, as a library asks it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pipeline.serving.inference import Answer, AnswerRequest, Decoding, Sampling

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
