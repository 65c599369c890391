"""The port of everything that answers: an engine opens a session for one model, and the session says what decodes it
before any answer is paid for. Answers are kept in a journal for each model and protocol: who asks the same is not
charged again. An error is not kept."""

import hashlib
import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Literal, Protocol

from pipeline.core import layout
from pipeline.core.journal import Journal, JournalEntry, forget, latest
from pipeline.core.journal import open_journal as open_entries
from pipeline.core.removal import Removal
from pipeline.core.storage import ModelRef, Record, Store, digest_json

PROGRESS_EVERY_S = 3.0
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
    """Of an error: what it was. Of an answer that a server cut within its thought: how the thought begins."""

    @property
    def finished(self) -> bool:
        return self.stop == "stop"


def unanswerable(key: str, why: str) -> Answer:
    """The answer to what a model cannot be asked."""
    return Answer(key=key, text="", tokens=0, prompt_tokens=0, stop="refused", latency_s=0.0, detail=why)


def with_progress(done: Callable[[Answer], None], asked: int, log: Callable[[str], None]) -> Callable[[Answer], None]:
    """`done`, which also logs every few seconds how many of the `asked` answers are there."""
    answered, begun = 0, time.monotonic()
    logged = begun

    def take(answer: Answer) -> None:
        nonlocal answered, logged
        done(answer)
        answered += 1
        now = time.monotonic()
        if now - logged > PROGRESS_EVERY_S or answered == asked:
            logged = now
            log(f"serving: {answered} of {asked} answers, {answered / max(now - begun, 1e-9):.0f}/s")

    return take


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


def served_dtype(on_gpu: bool) -> str:
    """What both arms are served in, whatever each one's weights were saved in."""
    return "bfloat16" if on_gpu else "float32"


def beyond_context(messages: Messages, tokens: int, limit: int, context: int | None) -> str:
    """Why a prompt of so many tokens leaves no room for an answer of `limit`; "" where it does, or nothing is known."""
    if context is None or tokens + limit <= context:
        return ""
    return (
        f"a prompt of {tokens:,} tokens and {limit:,} for its answer are more than the context of {context:,}. Lower "
        f"max_completion_tokens, or leave out the item that begins {messages[-1]['content'][:60]!r}."
    )


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


class AnswerProtocol(Record):
    """What decides an answer apart from weights, messages and the sample's number; its digest names the journal."""

    decoding: Decoding
    temperature: float
    max_completion_tokens: int
    seed: int

    @classmethod
    def under(cls, decoding: Decoding, plan: Sampling) -> "AnswerProtocol":
        most = plan.max_completion_tokens
        return cls(decoding=decoding, temperature=plan.temperature, max_completion_tokens=most, seed=plan.seed)

    def digest(self) -> str:
        return digest_json(self)


class AnswerLine(JournalEntry):
    """An answer. Its owner is the item that it is about; its digest is that of the protocol."""

    answer: Answer


def answer_key(model: str, protocol: str, item: str, messages: Messages, sample: int) -> str:
    """Identity of one answer. `model`, `protocol`: digests. Other items of the suite are no part of it."""
    return digest_json([model, protocol, item, messages, sample])


class AnswerJournal:
    """The answers of one model under one protocol, by key, and the file that keeps them."""

    def __init__(self, journal: Journal[AnswerLine]) -> None:
        self._journal = journal
        self.answers = {key: line.answer for key, line in latest(journal.read()).items()}

    def add(self, item: str, answer: Answer) -> None:
        """Keep an answer. Raises OSError where the disk does not take it whole; it is then asked again."""
        self._journal.add(AnswerLine(key=answer.key, owner=item, answer=answer))
        self.answers[answer.key] = answer


@contextmanager
def open_journal(
    store: Store, model: str, protocol: AnswerProtocol, folder: str = layout.ANSWERS
) -> Generator[AnswerJournal]:
    """The journal of a model (by digest) in `folder`, held until the block ends; waits for who holds it now."""
    digest = protocol.digest()
    path = store.path(layout.answers(model, digest, folder))
    with open_entries(path, AnswerLine, digest) as journal:
        yield AnswerJournal(journal)


def removals(store: Store, items: Collection[str], folder: str = layout.ANSWERS) -> Iterator[Removal]:
    """The answers to these items in every journal of `folder`."""
    return forget(store, store.path(folder).glob("*/*.jsonl"), items)
