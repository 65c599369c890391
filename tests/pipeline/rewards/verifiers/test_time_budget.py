"""Completions that hang the checker cost so much time and no more, and what is left unchecked says so."""

from collections import Counter

import pytest

from pipeline.rewards.verifiers import Outcome, VerifierTask, grader
from pipeline.rewards.verifiers.outcome import TimeBudget

HANGS = 0.5
"""Deadline of an item, in seconds; a pattern that hangs takes for ever."""


def hanging(number: int) -> VerifierTask:
    return VerifierTask(f'"{"a" * 5000}{number}"', '{"type": "string", "pattern": "^(a+)+$"}', "json_schema")


def plain(number: int) -> VerifierTask:
    return VerifierTask(f"[{number}]", '{"type": "array"}', "json_schema")


def test_an_account_is_by_principal_and_of_all() -> None:
    budget = TimeBudget(each_s=1.0, all_s=1.5)
    budget.charge("ann", 1.0)
    assert (budget.is_spent("ann"), budget.is_spent("bob")) == (True, False)
    budget.charge("bob", 0.5)
    assert budget.is_spent("cat")


@pytest.mark.slow
def test_a_spent_budget_leaves_the_rest_without_a_label() -> None:
    rows = [("mallory", hanging(n)) for n in range(12)] + [("ann", plain(n)) for n in range(12)]
    with grader(workers=1, timeout_s=HANGS) as check:
        grades = check([task for _, task in rows], [who for who, _ in rows], TimeBudget(each_s=3 * HANGS, all_s=100.0))
    of_mallory = Counter(grade.outcome for grade in grades[:12])
    assert of_mallory == {Outcome.timeout: 3, Outcome.budget: 9}
    assert {grade.outcome for grade in grades[12:]} == {Outcome.correct}
    assert Outcome.budget.score is None
