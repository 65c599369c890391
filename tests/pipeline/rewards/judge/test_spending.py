import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.rewards.judge import (
    Budget,
    Endpoint,
    JudgeReason,
    open_judge,
)

from .endpoint import JUDGE, Said, always, asked, completion, scored, serving

pytestmark = pytest.mark.slow

bills = st.tuples(st.integers(1, 1500), st.integers(0, 256))
responses = st.one_of(
    bills.map(lambda usage: scored(3, usage=usage)),
    st.just(scored(3, usage=None)),
    st.just(completion("prose")),
    st.just(Said(500)),
    st.just(Said(400)),
    st.just(Said(200, b"<html>")),
)


@settings(max_examples=25)
@given(st.lists(responses, min_size=1, max_size=12), st.integers(0, 15_000), st.booleans())
def test_the_budget_is_never_passed(answers: list[Said], most: int, in_dollars: bool) -> None:
    budget = Budget(None, most / 1e6, 1.0, 1.0) if in_dollars else Budget(most, None, 1.0, 1.0)
    with (
        serving(lambda server, request, place: answers[place % len(answers)]) as server,
        open_judge(Endpoint(server.url), JUDGE, budget, lambda line: None, backoff_s=0.0001) as judge,
    ):
        judgements = judge.score(asked(10))
    assert budget.spent_tokens <= most
    assert sum(judgement.tokens for judgement in judgements) == budget.spent_tokens
    assert sum(judgement.usd for judgement in judgements) == pytest.approx(budget.spent_usd)


def test_a_budget_is_used_up_before_anything_is_refused() -> None:
    """What others hold in flight is waited for: with 100 tokens a question, most of the budget buys answers."""
    config = JUDGE.model_copy(update={"concurrency": 8})
    budget = Budget(10_000, None, 0, 0)
    with serving(always(scored(3))) as server, open_judge(Endpoint(server.url), config, budget) as judge:
        judgements = judge.score(asked(150))
    reasons = [judgement.reason for judgement in judgements]
    held = int(server.requests[0].headers["Content-Length"]) + 5 + config.max_completion_tokens
    assert set(reasons) == {"", JudgeReason.BUDGET}
    assert 10_000 - held < budget.spent_tokens <= 10_000
    assert len(server.requests) == reasons.count("")


def test_session_stops_asking_a_server_that_takes_too_much() -> None:
    config = JUDGE.model_copy(update={"concurrency": 1})
    budget = Budget(20_000, None, 0, 0)
    with (
        serving(always(scored(5, usage=(50_000, 10)))) as server,
        open_judge(Endpoint(server.url), config, budget) as judge,
    ):
        judgements = judge.score(asked(5))
    assert [judgement.reason for judgement in judgements] == ["", *[JudgeReason.BUDGET] * 4]
    assert budget.spent_tokens == 50_010
    assert len(server.requests) == 1
