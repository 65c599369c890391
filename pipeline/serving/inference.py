"""The port of everything that answers: an engine opens a session for one model, and the session says what decodes it
before any answer is paid for."""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple, Protocol

from pipeline.core.storage import ModelRef, Record

Messages = list[dict[str, str]]
"""A chat prompt: `[{"role": "user", "content": ...}, ...]`."""


class Sampling(Record):
    """How the answers to a prompt are drawn: `samples` of each, by seeds that follow from `seed`. `temperature` 0 takes
    the likeliest token each time. An answer ends after `max_completion_tokens` tokens."""

    samples: int = 1
    temperature: float = 1.0
    max_completion_tokens: int = 32
    seed: int = 0
    skip_unanswerable: bool = False
    """What the model cannot be asked is answered by a refusal; else one such request refuses them all."""


class AnswerRequest(Record):
    """One answer to be drawn. `seed` decides its random choices, whatever else is asked at once."""

    key: str
    messages: Messages
    seed: int


class Answer(Record):
    """One drawn answer. `stop` is `length` where it was cut at the limit, `error` where there is none, and `refused`
    where the model cannot be asked at all (`Sampling.skip_unanswerable`)."""

    key: str
    text: str
    tokens: int
    prompt_tokens: int
    stop: Literal["stop", "length", "error", "refused"]
    latency_s: float
    """Wall-clock time of the request, or of the batch that it was drawn in."""
    detail: str = ""
    """Of an error: what it was."""

    @property
    def finished(self) -> bool:
        return self.stop == "stop"


def unanswerable(key: str, why: str) -> Answer:
    """The answer to what a model cannot be asked."""
    return Answer(key=key, text="", tokens=0, prompt_tokens=0, stop="refused", latency_s=0.0, detail=why)


class Decoding(Record):
    """What decides an answer apart from weights, messages, seed and sampling, as the engine states it."""

    engine: str
    version: str
    device: str
    dtype: str
    """Of the weights as they are loaded, which may not be what they were saved in."""
    stop_ids: tuple[int, ...]
    """Token ids that end a completion."""
    context: int | None
    """Tokens that the model can attend to; None where its configuration does not say."""
    tokens_digest: str
    """sha256 of the token ids of the probe conversations and, where the engine can tell, of the text of every token:
    what template and tokenizer make of messages."""
    batch_invariant: bool = False
    """Whether the engine promises the same answer to the same seed in any batch."""


def beyond_context(messages: Messages, tokens: int, limit: int, context: int | None) -> str:
    """Why a prompt of so many tokens leaves no room for an answer of `limit`; "" where it does, or nothing is known."""
    if context is None or tokens + limit <= context:
        return ""
    return (
        f"a prompt of {tokens:,} tokens and {limit:,} for its answer are more than the context of {context:,}. Lower "
        f"max_completion_tokens, or leave out the item that begins {messages[-1]['content'][:60]!r}."
    )


class ServedAt(NamedTuple):
    """Where a program that is not ours asks a session's model."""

    url: str
    """Root of an OpenAI-compatible API."""
    api_key: str
    model: str
    """Its name there."""
    extra: dict[str, Any]
    """What each question carries besides OpenAI's fields, to be answered as ours are."""


class InferenceSession(Protocol):
    """One model, opened. What it holds (a process, connections) ends with the context that it came from."""

    @property
    def decoding(self) -> Decoding: ...

    def answer(self, requests: Sequence[AnswerRequest], sampling: Sampling, done: Callable[[Answer], None]) -> None:
        """Hand each answer to `done` as soon as it is there, in any order, in the caller's thread. Returns when every
        request was answered, if only by an error. Raises ValueError for what the model cannot answer at all (a prompt
        beyond its context, a role that its template refuses), before anything is drawn, and RuntimeError when the
        engine ends."""
        ...


class InferenceEngine(Protocol):
    """Opens models. `arm` names the part that a model plays (champion, candidate): an endpoint serves by names."""

    def open(self, arm: str, model: ModelRef) -> AbstractContextManager[InferenceSession]: ...


def answer_seed(seed: int, item: str, sample: int) -> int:
    """The seed of one answer: 31 bits, the same for every model, so that two models share their random numbers."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{item}/{sample}".encode()).digest()[:4]) >> 1


PROBES: tuple[Messages, ...] = (
    [{"role": "user", "content": "What is 12 and 30?"}],
    [{"role": "user", "content": "  Spaces around,\n\nand a line between.\t"}],
    [{"role": "user", "content": "Größe, 東京, שלום, 🙂🏽 and e\u0301"}],
    [{"role": "user", "content": "<|im_end|></s>[INST] {{ messages }} <think></think>"}],
    [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": "Why?"}],
    [
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "One."},
        {"role": "user", "content": "Two?"},
    ],
    [{"role": "user", "content": "def f(x):\n    return {'a': [1, 2.50, -3e8]}\n"}],
    [{"role": "user", "content": "a" * 200}],
)
"""Conversations whose token ids tell one chat template and tokenizer from another."""
