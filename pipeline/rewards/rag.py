"""Ragas (arXiv:2309.15217): is an answer supported by its contexts, and were they the right ones.

Owns what reaches the library and what is believed of it. Ragas brings prompts and arithmetic; requests go through the
judge's client, so that one budget, deadline, schema and no redirect hold for them too. NaN, or a verdict that is
neither 0 nor 1, is a reason and never a value. Departures: hostile text is defused as for the judge, a negative cosine
counts as 0, context precision without a reference goes by the completion, and verdicts must be as many as claims.
"""

from __future__ import annotations

import asyncio
import importlib
import math
import os
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from itertools import accumulate
from typing import Any, NamedTuple, cast

import msgspec

from pipeline.recipe.rewards import Rag
from pipeline.rewards.judge import Budget, Endpoint
from pipeline.rewards.judge.endpoint import check_endpoint
from pipeline.rewards.judge.fence import visible
from pipeline.rewards.rag_backend import (
    ERROR,
    MALFORMED,
    TOO_LONG,
    Backend,
    EndpointConnection,
    MetricMissing,
    open_wire,
)
from pipeline.rewards.records import ABSENT
from pipeline.storage import Record, digest_json
from pipeline.traces.sources.shapes import decoded

VERSION = 1
"""Raise it when the same row could get other values: it is part of the id."""
METRICS = ("faithfulness", "answer_relevancy", "context_precision", "context_recall")
MAX_CONTEXTS, MAX_CHARS = 20, 100_000
"""Passages of a trace that count, the first ones, and characters of all of them together; of any other text, too."""


class Retrieved(NamedTuple):
    """An answer and the passages it was given, the best ranked first."""

    question: str
    contexts: list[str]
    completion: str
    reference: str | None


class RagFinding(Record):
    """Each of METRICS is in exactly one of the two: a value in [0, 1], or the reason why there is none."""

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


@contextmanager
def open_rag(
    url: str, api_key: str, settings: Rag, budget: Budget, log: Callable[[str], None]
) -> Generator[RagSession]:
    """A session with the endpoint at `url`, such as `http://127.0.0.1:8000/v1`.

    Raises ValueError without Ragas, or for an endpoint that cannot be used.
    """
    check_endpoint(Endpoint(url, api_key))
    os.environ["RAGAS_DO_NOT_TRACK"] = "true"  # it reports home otherwise, and reads this once
    try:
        metrics = importlib.import_module("ragas.metrics.collections")
        llms, embeddings = (importlib.import_module(f"ragas.{name}.base") for name in ("llms", "embeddings"))
    except ImportError as error:
        raise ValueError(
            f"The recipe has rewards.rag and Ragas cannot be imported ({error}). Run pip install "
            "'preference-tuning[rag]', or remove the section."
        ) from error
    llms.InstructorBaseRagasLLM.register(Backend)
    embeddings.BaseRagasEmbedding.register(Backend)
    yield RagSession(Endpoint(url, api_key), settings, budget, log, metrics)


class RagSession:
    """One model, and perhaps one for embeddings, behind one endpoint. Equal ids, comparable values."""

    def __init__(
        self, endpoint: Endpoint, settings: Rag, budget: Budget, log: Callable[[str], None], metrics: Any
    ) -> None:
        self._endpoint, self._settings, self._budget, self._log = endpoint, settings, budget, log
        self._metrics = metrics
        what = {
            "model": settings.model,
            "digest": settings.digest,
            "embeddings": settings.embeddings,
            "ragas": version("ragas"),
        }
        self.id = digest_json({**what, "version": VERSION})

    def score(
        self, rows: Sequence[Retrieved], done: Callable[[int, RagFinding], None] | None = None
    ) -> list[RagFinding]:
        """The findings in the order of the rows. `done` hears each as soon as it is known. Not from an event loop."""
        return asyncio.run(self._score(rows, done))

    async def _score(
        self, rows: Sequence[Retrieved], done: Callable[[int, RagFinding], None] | None
    ) -> list[RagFinding]:
        findings: dict[int, RagFinding] = {}
        slots = asyncio.Semaphore(self._settings.concurrency)
        async with open_wire(self._endpoint, self._settings, self._budget, self._log) as wire:

            async def one(place: int) -> None:
                async with slots:
                    findings[place] = await self._row(rows[place], wire)
                if done is not None:
                    done(place, findings[place])

            tasks = [asyncio.ensure_future(one(place)) for place in range(len(rows))]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
        return [findings[place] for place in range(len(rows))]

    async def _row(self, row: Retrieved, wire: EndpointConnection) -> RagFinding:
        values: dict[str, float] = {}
        missing: dict[str, str] = {}
        tokens, usd = 0, 0.0
        row = Retrieved(
            visible(row.question),
            [visible(context) for context in row.contexts],
            visible(row.completion),
            visible(row.reference) if row.reference else None,
        )
        for name in METRICS:
            backend = Backend(wire)
            try:
                value = await self._metric(name, row, backend)
                if not math.isfinite(value):
                    raise MetricMissing(MALFORMED)
                values[name] = min(max(value, 0.0), 1.0)
            except MetricMissing as reason:
                missing[name] = str(reason)
            # The boundary to the library: what it raises about one row must not take the others with it.
            except Exception as error:
                self._log(f"rag: {name}: {type(error).__name__}")
                missing[name] = ERROR
            tokens, usd = tokens + backend.tokens, usd + backend.usd
        return RagFinding(values=values, missing=missing, tokens=tokens, usd=usd)

    async def _metric(self, name: str, row: Retrieved, backend: Backend) -> float:
        """The library's value for a metric that applies; else raises MetricMissing."""
        needs_reference, needs_embeddings = name == "context_recall", name == "answer_relevancy"
        if not (row.question.strip() and row.completion.strip() and row.contexts):
            raise MetricMissing(ABSENT)
        if (needs_reference and row.reference is None) or (needs_embeddings and not self._settings.embeddings):
            raise MetricMissing(ABSENT)
        if max(map(len, (row.question, row.completion, row.reference or "", "".join(row.contexts)))) > MAX_CHARS:
            raise MetricMissing(TOO_LONG)
        asked: dict[str, Any] = {"user_input": row.question, "retrieved_contexts": row.contexts}
        match name:
            case "faithfulness":
                metric = self._metrics.Faithfulness(llm=backend)
                asked["response"] = row.completion
            case "answer_relevancy":
                metric = self._metrics.AnswerRelevancy(llm=backend, embeddings=backend)
                asked = {"user_input": row.question, "response": row.completion}
            case "context_precision" if row.reference is None:
                metric = self._metrics.ContextPrecisionWithoutReference(llm=backend)
                asked["response"] = row.completion
            case _:
                kind = "ContextRecall" if needs_reference else "ContextPrecisionWithReference"
                metric = getattr(self._metrics, kind)(llm=backend)
                asked["reference"] = row.reference
        return float((await cast(Awaitable[Any], metric.ascore(**asked))).value)
