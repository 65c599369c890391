"""Four measures of an answer that was given passages, by a judge: is it supported, and were they the right ones.

Faithfulness and answer relevance are those of Ragas (arXiv 2309.15217, section 3); context precision and context recall
are the same project's later measures, which the paper does not have. The prompts are our own (`judge/retrieval.py`).
- faithfulness: of the answer's statements, the share that follows from the passages.
- answer relevancy: how near the questions that the answer would fit are to the one asked, on average. Departures: the
  judge marks likeness from 1 to 5, as (m - 1) / 4, where the paper takes the cosine of two embeddings: that needs no
  second model; and an evasive answer is worth 0.
- context precision: average precision of the passages, in their order, of which the judge says one by one whether the
  reference answer rests on them (without a reference: the completion). 0 where none is of use.
- context recall: of the reference's statements, the share that follows from the passages.
A measure that the judge did not answer exactly as asked has a reason and no value.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from pipeline.recipe.rewards import Judge, Rag
from pipeline.rewards.judge import Budget, Endpoint, JudgeReason
from pipeline.rewards.judge import retrieval as ask
from pipeline.rewards.judge.session import JudgeLoop, open_loop
from pipeline.rewards.records import ABSENT
from pipeline.serving.endpoint import check_endpoint
from pipeline.storage import Record, digest_json
from pipeline.traces.sources.shapes import decoded

METRICS = ("faithfulness", "answer_relevancy", "context_precision", "context_recall")
MAX_CONTEXTS, MAX_CHARS = 20, 100_000
"""Passages of a trace that count, the first ones, and characters of all of them together; of any other text, too."""
ATTEMPTS, BACKOFF_S = 3, 0.5
MAX_COMPLETION_TOKENS = 4096
"""Of a response: a list of statements, each with a reason."""
MAX_RESPONSE_BYTES = 4_000_000

ERROR, TIMEOUT, BUDGET, MALFORMED, TOO_LONG = "rag_error", "rag_timeout", "rag_budget", "rag_malformed", "rag_too_long"
DECLINED = "rag_declined"
AGAIN = frozenset({ERROR, TIMEOUT, BUDGET})
"""What another attempt may get past; the others are the judge's own doing, which it would repeat."""
_REASONS = {
    JudgeReason.BUDGET: BUDGET,
    JudgeReason.TIMEOUT: TIMEOUT,
    JudgeReason.DECLINED: DECLINED,
    **dict.fromkeys((JudgeReason.UNREACHABLE, JudgeReason.UNAVAILABLE, JudgeReason.HTTP, JudgeReason.REDIRECT), ERROR),
}

V = TypeVar("V")


class Retrieved(NamedTuple):
    """An answer and the passages it was given, the best ranked first."""

    question: str
    contexts: list[str]
    completion: str
    reference: str | None
    metrics: tuple[str, ...] = METRICS
    """Which of them are asked for."""


class RagFinding(Record):
    """Each metric that was asked for is in exactly one of the two: a value in [0, 1], or why there is none."""

    values: dict[str, float]
    missing: dict[str, str]
    tokens: int
    usd: float


def contexts_of(metadata: str, key: str) -> list[str]:
    """The passages under `key` of a trace's metadata: texts, or objects with `content`, `text` or `page_content`.

    The value may be JSON in text. At most MAX_CONTEXTS, as many as fit into MAX_CHARS whole; [] for anything else.
    """
    try:
        parsed = msgspec.json.decode(metadata)
        value = cast(dict[str, Any], parsed).get(key) if isinstance(parsed, dict) else None
    except (msgspec.MsgspecError, RecursionError):
        return []
    listed = decoded(value) if isinstance(value, str) else value
    if not isinstance(listed, list):
        return []
    texts = [_text(passage) for passage in cast(list[Any], listed)[:MAX_CONTEXTS]]
    if not all(isinstance(text, str) for text in texts):
        return []
    passages = [cast(str, text) for text in texts if text]
    fits = sum(length <= MAX_CHARS for length in accumulate(map(len, passages)))
    return passages[:fits]


def _text(passage: Any) -> Any:
    if not isinstance(passage, dict):
        return passage
    known = cast(dict[str, Any], passage)
    return next((known[name] for name in ("content", "text", "page_content") if name in known), None)


class MetricMissing(Exception):
    """Why a metric has no value."""


@contextmanager
def open_rag(endpoint: Endpoint, settings: Rag, budget: Budget, log: Callable[[str], None]) -> Generator[RagSession]:
    """A session with the endpoint, which is not asked anything before `score` is called.

    Raises ValueError for an endpoint that cannot be used.
    """
    check_endpoint(endpoint, "The judge's", "JUDGE")
    limits = {"concurrency": settings.concurrency, "timeout_s": settings.timeout_s, "attempts": ATTEMPTS}
    limits |= {"max_completion_tokens": MAX_COMPLETION_TOKENS, "max_response_bytes": MAX_RESPONSE_BYTES}
    judge = Judge.model_validate({"model": settings.model, "digest": settings.digest, **limits})
    with open_loop(endpoint, judge, budget, lambda line: log(line.replace("judge:", "rag:", 1)), BACKOFF_S) as loop:
        yield RagSession(settings, loop)


class RagSession:
    """One model behind one endpoint. Equal ids, comparable values."""

    def __init__(self, settings: Rag, loop: JudgeLoop) -> None:
        self._settings, self._loop = settings, loop
        self.id = digest_json({"model": settings.model, "digest": settings.digest, "prompt": ask.VERSION})

    def score(
        self, rows: Sequence[Retrieved], done: Callable[[int, RagFinding], None] | None = None
    ) -> list[RagFinding]:
        """The findings in the order of the rows. `done(place, finding)` is called as soon as one is known."""
        return self._loop.all(rows, self._row, done)

    async def _row(self, row: Retrieved) -> RagFinding:
        values: dict[str, float] = {}
        missing: dict[str, str] = {}
        tokens, usd = 0, 0.0
        for name in row.metrics:
            measuring = _Measuring(self._loop, self._settings.timeout_s)
            try:
                values[name] = await measuring.metric(name, row)
            except MetricMissing as reason:
                missing[name] = str(reason)
            tokens, usd = tokens + measuring.tokens, usd + measuring.usd
        return RagFinding(values=values, missing=missing, tokens=tokens, usd=usd)


class _Measuring:
    """One metric of one row: what it took so far, and until when it may ask."""

    def __init__(self, loop: JudgeLoop, timeout_s: float) -> None:
        self._loop, self._deadline = loop, time.monotonic() + timeout_s
        self.tokens, self.usd = 0, 0.0

    async def metric(self, name: str, row: Retrieved) -> float:
        """The value of a metric that applies; else raises MetricMissing."""
        if not (row.question.strip() and row.completion.strip() and row.contexts):
            raise MetricMissing(ABSENT)
        if name == "context_recall" and not row.reference:
            raise MetricMissing(ABSENT)
        if max(map(len, (row.question, row.completion, row.reference or "", "".join(row.contexts)))) > MAX_CHARS:
            raise MetricMissing(TOO_LONG)
        match name:
            case "faithfulness":
                return await self._supported(row, row.completion)
            case "answer_relevancy":
                return await self._relevancy(row)
            case "context_precision":
                return await self._precision(row)
            case _:
                return await self._supported(row, row.reference or "")

    async def _supported(self, row: Retrieved, text: str) -> float:
        """The share of the text's statements that follow from the passages. A text without any has none."""
        statements = await self._answered(ask.ask_statements(row.question, text), ask.read_statements)
        marks = await self._answered(
            ask.ask_support(row.contexts, statements),
            lambda content: ask.read_marks(content, ask.SUPPORT, len(statements)),
        )
        return sum(marks) / len(marks)

    async def _relevancy(self, row: Retrieved) -> float:
        guessed = await self._answered(ask.ask_guesses(row.completion), ask.read_guesses)
        if guessed.evasive:
            return 0.0
        marks = await self._answered(
            ask.ask_likeness(row.question, guessed.questions),
            lambda content: ask.read_marks(content, ask.LIKENESS, len(guessed.questions)),
        )
        return sum((mark - 1) / 4 for mark in marks) / len(marks)

    async def _precision(self, row: Retrieved) -> float:
        answer, useful = row.reference or row.completion, list[int]()
        for context in row.contexts:
            useful.append(await self._answered(ask.ask_usefulness(row.question, answer, context), ask.read_usefulness))
        return average_precision(useful)

    async def _answered(self, asked: ask.RetrievalQuestion, read: Callable[[str], V | None]) -> V:
        """The answer as `read` has it. Starts no request after the deadline."""
        if time.monotonic() > self._deadline:
            raise MetricMissing(TIMEOUT)
        response = await self._loop.client.ask(asked.messages, asked.form)
        self.tokens, self.usd = self.tokens + response.tokens, self.usd + response.usd
        if response.content is None:
            raise MetricMissing(_REASONS.get(response.reason or JudgeReason.MALFORMED, MALFORMED))
        answer = read(response.content)
        if answer is None:
            raise MetricMissing(MALFORMED)
        return answer


def average_precision(useful: Sequence[int]) -> float:
    """Mean of the precision at each rank that holds a useful passage; 0 without any. `useful`: 0 or 1 by rank."""
    hits = list(accumulate(useful))
    if not any(useful):
        return 0.0
    return sum(hit / rank for rank, (hit, use) in enumerate(zip(hits, useful, strict=True), start=1) if use) / hits[-1]
