"""The measures of passages when the judge fails: a reason for each metric, and never a number."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.rewards.judge.budget import Budget
from pipeline.rewards.rag import METRICS

from .judge.endpoint import Request, Said, Server, always, serving
from .rag_server import BAD, GOOD, ROW, findings_of, form_of, marks, reader, said, scripted, unlimited

NOW = {"Retry-After": "0"}


@pytest.mark.parametrize(
    ("failing", "reason"),
    [
        (Said(400, b"{}"), "rag_error"),
        (Said(429, b"", NOW), "rag_error"),
        (Said(500, b"<html>oops</html>", NOW), "rag_error"),
        (Said(307, b"", {"Location": "/v1/elsewhere"}), "rag_error"),
        (Said(200, b"<html>hello</html>"), "rag_malformed"),
        (Said(200, b" " * 5_000_000), "rag_malformed"),
        (said("{}", model="another"), "rag_malformed"),
        (said('{"statements": ["cut'), "rag_malformed"),
        (said(None, refusal="I would rather not."), "rag_declined"),
        (said("{}", finish="content_filter"), "rag_declined"),
        (said("{}", finish="length"), "rag_malformed"),
    ],
)
def test_a_failing_judge_is_a_reason_and_never_a_value(failing: Said, reason: str) -> None:
    with serving(always(failing)) as server:
        (finding,) = findings_of(server, ROW)
    assert finding.values == {}
    assert finding.missing == dict.fromkeys(METRICS, reason)


def test_what_passes_is_tried_again() -> None:
    def late(server: Server, request: Request, place: int) -> Said:
        return Said(429, b"", NOW) if place == 0 else reader(server, request, place)

    with serving(late) as server:
        (finding,) = findings_of(server, ROW)
    assert finding.missing == {}
    assert finding.tokens == 110 * (len(server.requests) - 1), "a refusal for now costs nothing"


@pytest.mark.parametrize(
    "verdicts",
    [
        marks(),
        marks(1),
        marks(1, 1, 1),
        {"verdicts": marks(1, 1)["verdicts"][::-1]},
        {"verdicts": [marks(1)["verdicts"][0]] * 2},
    ],
    ids=["none", "too few", "too many", "out of order", "one twice"],
)
def test_statements_that_nobody_judged_give_no_value(verdicts: Any) -> None:
    with serving(scripted(support=[verdicts, marks(1)])) as server:
        (finding,) = findings_of(server, ROW._replace(completion=f"{GOOD} {BAD}"))
    assert finding.missing == {"faithfulness": "rag_malformed"}
    assert finding.values.keys() == set(METRICS) - {"faithfulness"}


def test_an_answer_without_statements_is_not_a_number() -> None:
    with serving(scripted(statements=[{"statements": []}, {"statements": ["one"]}], support=[marks(1)])) as server:
        (finding,) = findings_of(server, ROW)
    assert finding.missing == {"faithfulness": "rag_malformed"}


def test_a_passage_that_nobody_judged_costs_the_precision() -> None:
    with serving(scripted(usefulness=[{"reason": "", "mark": 1}, "no idea"])) as server:
        (finding,) = findings_of(server, ROW._replace(contexts=["one", "two", "three"]))
    assert finding.missing == {"context_precision": "rag_malformed"}
    assert [form_of(request) for request in server.requests].count("usefulness") == 2, "the third could not save it"


@pytest.mark.slow
def test_a_silent_judge_times_out() -> None:
    def silent(server: Server, request: Request, place: int) -> Said:
        server.closing.wait(60)
        return Said(200)

    budget = unlimited()
    with serving(silent) as server:
        (finding,) = findings_of(server, ROW, timeout_s=1, budget=budget)
    assert finding.missing == dict.fromkeys(METRICS, "rag_timeout")
    assert finding.tokens == budget.spent_tokens > 4 * 4096  # it may have been billed


@pytest.mark.slow
def test_the_budget_is_never_passed_and_what_it_cost_adds_up() -> None:
    rows = [ROW._replace(completion=f"{GOOD} {number}") for number in range(8)]
    budget = Budget(9_000, None, 1.0, 2.0)
    with serving(reader) as server:
        findings = findings_of(server, *rows, budget=budget)
    assert budget.spent_tokens <= 9_000
    assert sum(f.tokens for f in findings) == budget.spent_tokens
    assert sum(f.usd for f in findings) == pytest.approx(budget.spent_usd)
    assert "rag_budget" in {reason for f in findings for reason in f.missing.values()}
    assert any(f.values for f in findings)


def test_a_server_without_response_format_is_read_as_strictly() -> None:
    """Asked without a form, a test's server cannot know which question it is: what it says fits the first alone."""

    def plain(server: Server, asked: Request, place: int) -> Said:
        return Said(400, b"{}") if "response_format" in asked.body else said({"statements": ["one"]})

    with serving(plain) as server:
        (finding,) = findings_of(server, ROW)
    assert finding.missing == dict.fromkeys(METRICS, "rag_malformed")
    assert sum("response_format" in request.body for request in server.requests) == 1
