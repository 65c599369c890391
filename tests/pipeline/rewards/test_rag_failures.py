"""The Ragas metrics when the endpoint fails: a reason for each metric, and never a number."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from pipeline.rewards.judge.budget import Budget
from pipeline.rewards.rag import METRICS
from tests.pipeline.rewards.rag_server import (
    BAD,
    CHAT,
    EMBEDDINGS,
    GOOD,
    ROW,
    Fault,
    Server,
    instead,
    needs_ragas,
    saying,
    scored,
    serve,
    unlimited,
)

pytestmark = needs_ragas


@pytest.fixture
def server() -> Iterator[Server]:
    with serve() as running:
        yield running


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (instead(CHAT, 400, {"error": "no"}), "rag_error"),
        (instead(CHAT, 500, b"<html>oops</html>", **{"Retry-After": "0"}), "rag_error"),
        (instead(CHAT, 307, b"", Location="/v1/elsewhere"), "rag_error"),
        (instead(CHAT, 200, b"<html>hello</html>"), "rag_malformed"),
        (instead(CHAT, 200, b" " * 5_000_000), "rag_malformed"),
        (saying("{}", model="another"), "rag_malformed"),
        (saying('{"statements": [], "question": "", "noncommittal": 0}'), "rag_malformed"),
    ],
)
def test_a_failing_endpoint_is_a_reason_and_never_a_value(server: Server, fault: Fault, reason: str) -> None:
    server.fault = fault
    (finding,) = scored(server, ROW)
    assert finding.values == {}
    assert finding.missing == dict.fromkeys(METRICS, reason)
    assert {path for path, _ in server.requests} == {CHAT}


@pytest.mark.parametrize("claims", [[], [{"statement": "one of two", "reason": "", "verdict": 1}]])
def test_claims_that_nobody_judged_give_no_value(server: Server, claims: list[Any]) -> None:
    server.fault = saying(json.dumps({"statements": claims}), "NLIStatementOutput")
    (finding,) = scored(server, ROW._replace(completion=f"{GOOD} {BAD}"))
    assert finding.missing == {"faithfulness": "rag_malformed"}


def test_an_answer_without_claims_is_not_a_number(server: Server) -> None:
    server.fault = saying('{"statements": []}', "StatementGeneratorOutput")
    (finding,) = scored(server, ROW)
    assert finding.missing == {"faithfulness": "rag_malformed"}


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (200, {"data": [{"index": 0, "embedding": [0.0, 0.0]}]}, "rag_malformed"),
        (200, {"data": []}, "rag_malformed"),
        (200, b'{"data": [{"index": 0, "embedding": [NaN, 1.0]}]}', "rag_malformed"),
        (200, {"data": [{"index": 0, "embedding": "AAAA"}]}, "rag_malformed"),
        (404, {"error": "no such model"}, "rag_error"),
    ],
)
def test_bad_embeddings_cost_one_metric(server: Server, status: int, body: Any, reason: str) -> None:
    server.fault = instead(EMBEDDINGS, status, body)
    (finding,) = scored(server, ROW)
    assert finding.missing == {"answer_relevancy": reason}
    assert finding.values.keys() == set(METRICS) - {"answer_relevancy"}


@pytest.mark.slow
def test_a_silent_endpoint_times_out(server: Server) -> None:
    def fault(server: Server, handler: Any, path: str, body: dict[str, Any]) -> bool:
        return server.release.wait(60)

    server.fault = fault
    budget = unlimited()
    (finding,) = scored(server, ROW, timeout_s=1, budget=budget)
    assert finding.missing == dict.fromkeys(METRICS, "rag_timeout")
    assert finding.tokens == budget.spent_tokens > 4 * 4096  # it may have been billed


def test_the_budget_is_never_passed_and_what_it_cost_adds_up(server: Server) -> None:
    rows = [ROW._replace(completion=f"{GOOD} {number}") for number in range(8)]
    budget = Budget(12_000, None, 1.0, 2.0)
    findings = scored(server, *rows, budget=budget)
    assert budget.spent_tokens <= 12_000
    assert sum(f.tokens for f in findings) == budget.spent_tokens
    assert sum(f.usd for f in findings) == pytest.approx(budget.spent_usd)
    assert "rag_budget" in {reason for f in findings for reason in f.missing.values()}
    assert any(f.values for f in findings)
