"""One question to a model on Ragas' behalf, without Ragas: strict reading, counting, the budget."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from pipeline.recipe.rewards import Rag
from pipeline.rewards.judge import Budget, Endpoint
from pipeline.rewards.rag_backend import Backend, MetricMissing, closed, open_wire
from tests.pipeline.rewards.rag_server import Server, saying, serve, unlimited


@pytest.fixture
def server() -> Iterator[Server]:
    with serve() as running:
        yield running


class Verdicts(BaseModel):
    class Verdict(BaseModel):
        statement: str
        verdict: int

    statements: list[Verdict]


def asked_directly(server: Server, budget: Budget, **settings: Any) -> tuple[Any, Backend]:
    """One question through the backend, as Ragas would put it: the answer or the reason, and what it counted."""

    async def ask() -> tuple[Any, Backend]:
        asked = Rag(model="grader", embeddings="embedder", **settings)
        async with open_wire(Endpoint(server.url, "secret"), asked, budget, lambda line: None) as wire:
            backend = Backend(wire)
            try:
                return await backend.agenerate("prompt", Verdicts), backend
            except MetricMissing as reason:
                return str(reason), backend

    return asyncio.run(ask())


def test_the_schema_leaves_no_room() -> None:
    inner = closed(Verdicts.model_json_schema())["$defs"]["Verdict"]
    assert inner["additionalProperties"] is False
    assert inner["properties"]["verdict"]["enum"] == [0, 1]


def test_an_answer_is_read_and_counted(server: Server) -> None:
    server.fault = saying('{"statements": [{"statement": "a", "verdict": 1}]}')
    budget = unlimited()
    found, backend = asked_directly(server, budget)
    assert found.statements[0].verdict == 1
    assert (backend.tokens, budget.spent_tokens) == (110, 110)
    assert backend.usd == pytest.approx(120e-6)
    assert server.keys == {"Bearer secret"}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "Sure! Here you are.",
        "{",
        "[]",
        '{"statements": [{"statement": "a", "verdict": 7}]}',
        '{"statements": [{"statement": "a", "verdict": NaN}]}',
        '{"statements": [{"statement": "a", "verdict": "1"}]}',
        '{"statements": [{"statement": "a", "verdict": true}]}',
        '{"statements": [{"statement": "a", "verdict": 0.5}]}',
        '{"statements": [{"statement": "a", "verdict": 1, "score": 1.0}]}',
        '{"statements": [{"statement": "a"}]}',
        '{"statements": [], "extra": 1}',
        "[" * 50_000,
    ],
)
def test_any_other_answer_is_malformed(server: Server, content: str) -> None:
    server.fault = saying(content)
    found, backend = asked_directly(server, unlimited())
    assert found == "rag_malformed"
    assert backend.tokens == 110


def test_a_request_that_could_pass_the_budget_is_not_made(server: Server) -> None:
    found, backend = asked_directly(server, Budget(4_000, None, 0.0, 0.0))
    assert (found, backend.tokens, server.requests) == ("rag_budget", 0, [])
