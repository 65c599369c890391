import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule
from pydantic import ValidationError

from pipeline.recipe.rewards import Judge
from pipeline.rewards.judge import Budget, TokenUsage

counts = st.integers(0, 1000)
usages = st.builds(TokenUsage, counts, counts)


class Spending(RuleBasedStateMachine):
    """Requests are held, run side by side, and settle in any order for anything up to what was held."""

    held = Bundle("held")

    @initialize(tokens=st.none() | st.integers(0, 5000), usd=st.none() | st.floats(0, 0.05))
    def open(self, tokens: int | None, usd: float | None) -> None:
        self.tokens, self.usd = tokens, usd
        self.budget = Budget(tokens, usd, 3.0, 15.0)
        self.open_requests = 0

    @rule(target=held, most=usages)
    def hold(self, most: TokenUsage) -> TokenUsage | None:
        if not self.budget.hold(most):
            return None
        self.open_requests += 1
        return most

    @rule(most=consumes(held), share=st.floats(0, 1))
    def settle(self, most: TokenUsage | None, share: float) -> None:
        if most is not None:
            self.budget.settle(most, TokenUsage(int(most.prompt * share), int(most.completion * share)))
            self.open_requests -= 1

    @rule(most=consumes(held))
    def fail(self, most: TokenUsage | None) -> None:
        if most is not None:
            self.budget.settle(most, TokenUsage(0, 0))
            self.open_requests -= 1

    @invariant()
    def it_is_never_passed(self) -> None:
        assert self.tokens is None or self.budget.spent_tokens <= self.tokens
        assert self.usd is None or self.budget.spent_usd <= self.usd + 1e-12

    @invariant()
    def what_was_given_back_can_be_used(self) -> None:
        if self.open_requests == 0 and self.tokens is not None and self.usd is None:
            left = TokenUsage(self.tokens - self.budget.spent_tokens, 0)
            assert self.budget.hold(left)
            assert not self.budget.hold(TokenUsage(1, 0))
            self.budget.settle(left, TokenUsage(0, 0))


TestSpending = Spending.TestCase
TestSpending.settings = settings(max_examples=50)


def test_dollars_are_counted_by_kind_of_token() -> None:
    budget = Budget(None, 1.0, 2.0, 10.0)
    assert budget.hold(TokenUsage(100_000, 80_000))  # exactly one dollar
    assert not budget.hold(TokenUsage(1, 0))
    budget.settle(TokenUsage(100_000, 80_000), TokenUsage(50_000, 10_000))
    assert budget.spent_usd == pytest.approx(0.2)
    assert budget.spent_tokens == 60_000


def test_a_dear_judge_is_a_judge() -> None:
    assert Judge(model="m", digest="d", usd_per_million_completion_tokens=2000.0).max_usd is None
    with pytest.raises(ValidationError, match="less than or equal to 1000000"):
        Judge(model="m", digest="d", usd_per_million_completion_tokens=1e308)


def test_an_earlier_run_of_the_iteration_has_spent_too() -> None:
    budget = Budget(1000, None, 0, 0, spent_tokens=990)
    assert not budget.hold(TokenUsage(11, 0))
    assert budget.hold(TokenUsage(10, 0))


def test_budget_counts_what_a_server_took_beyond_it() -> None:
    budget = Budget(100, None, 0, 0)
    assert budget.hold(TokenUsage(50, 10))
    budget.settle(TokenUsage(50, 10), TokenUsage(500, 10))
    assert budget.spent_tokens == 510
    assert not budget.hold(TokenUsage(0, 0))


def test_held_dollars_leave_no_residue() -> None:
    budget = Budget(None, 3 * 0.1, 100_000.0, 0)
    for _ in range(1000):
        assert budget.hold(TokenUsage(1, 0)) and budget.hold(TokenUsage(2, 0))
        budget.settle(TokenUsage(1, 0), TokenUsage(0, 0))
        budget.settle(TokenUsage(2, 0), TokenUsage(0, 0))
    assert budget.hold(TokenUsage(3, 0))
