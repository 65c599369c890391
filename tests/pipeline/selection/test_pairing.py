"""Pairs: what is paired, what never is, and whose pairs stay."""

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.recipe import Selection
from pipeline.selection.pairing import LabelledRow, Pair, by_prompt, cap_principals, pairs

from .labelled import row

SETTINGS = Selection(held_out_share=0.0, max_principal_share=1.0)


def traces(found: list[Pair]) -> list[tuple[str, str]]:
    return [(pair.chosen.trace_id, pair.rejected.trace_id) for pair in found]


def test_best_is_paired_with_worst() -> None:
    groups = by_prompt([row("a", 1.0), row("b", 0.1), row("c", 0.9), row("d", 0.4), row("e", None), row("f", 0.6)])
    (pair,) = pairs(groups, SETTINGS)
    assert (traces([pair]), pair.margin) == ([("a", "b")], 0.9)
    assert traces(pairs(groups, SETTINGS.model_copy(update={"max_pairs_per_prompt": 5}))) == [("a", "b"), ("c", "d")]


@pytest.mark.parametrize(
    ("high", "low", "margin_min", "made"),
    [(0.7, 0.499, 0.2, 1), (0.69, 0.1, 0.2, 0), (0.9, 0.5, 0.2, 0), (0.75, 0.45, 0.4, 0), (None, 0.1, 0.2, 0)],
    ids=["just", "chosen too low", "rejected too high", "margin too small", "no chosen"],
)
def test_the_thresholds(high: float | None, low: float | None, margin_min: float, made: int) -> None:
    settings = SETTINGS.model_copy(update={"margin_min": margin_min})
    assert len(pairs(by_prompt([row("a", high), row("b", low)]), settings)) == made


@pytest.mark.parametrize(
    "changes",
    [{"completion": " c-b\n"}, {"prompt": "other"}, {"profile": "rated"}, {"reference": "2"}],
    ids=["equal but for white space", "prompts", "profiles", "references"],
)
def test_what_is_never_paired(changes: dict[str, Any]) -> None:
    assert pairs(by_prompt([row("a", 1.0, **changes), row("b", 0.0)]), SETTINGS) == []


@pytest.mark.parametrize(
    ("rewards", "made"),
    [
        ((0.75, 0.25), []),  # a thumb up and a thumb down
        ((0.25, 0.25), [("top", "s0", 0.75)]),
        ((0.1, 0.9, 0.2), [("top", "s2", 0.6)]),
        ((0.7, 0.7, 0.7), [("s0", "low", 0.7)]),
    ],
)
def test_equal_texts_stand_with_the_mean_of_their_rewards(
    rewards: tuple[float, ...], made: list[tuple[str, str, float]]
) -> None:
    other = row("top", 1.0) if min(rewards) < 0.5 else row("low", 0.0)
    same = [row(f"s{n}", reward, completion=f"said{' ' * (n + 1)}so") for n, reward in enumerate(rewards)]
    found = pairs(by_prompt([*same, other]), SETTINGS)
    assert [(pair.chosen.trace_id, pair.rejected.trace_id, round(pair.margin, 9)) for pair in found] == made


@pytest.mark.parametrize("masked", ["Write to [EMAIL].", '<tool_call>{"to": "[PHONE]"}</tool_call>', "[BINARY]"])
def test_an_answer_with_a_placeholder_is_no_side(masked: str) -> None:
    assert pairs(by_prompt([row("a", 1.0, completion=masked), row("b", 0.0)]), SETTINGS) == []
    assert pairs(by_prompt([row("a", 1.0), row("b", 0.0, completion=masked)]), SETTINGS) == []
    assert len(pairs(by_prompt([row("a", 1.0, completion="[EM]"), row("b", 0.0)]), SETTINGS)) == 1


REWARDS = st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 1) | st.none(), st.sampled_from("xyz")), max_size=30)


@given(REWARDS, st.randoms(), st.integers(1, 4))
def test_pairs_hold_what_the_rule_says_in_any_order_of_files(
    found: list[tuple[str, float | None, str]], dice: random.Random, most: int
) -> None:
    settings = SETTINGS.model_copy(update={"max_pairs_per_prompt": most})
    rows = [row(f"t{i:02}", reward, prompt, completion=text) for i, (prompt, reward, text) in enumerate(found)]
    mixed = list(rows)
    dice.shuffle(mixed)
    made = pairs(by_prompt(rows), settings)
    assert made == pairs(by_prompt(mixed), settings)
    assert all(count <= most for count in Counter(pair.prompt for pair in made).values())
    used = [each.trace_id for pair in made for each in (pair.chosen, pair.rejected)]
    assert len(used) == len(set(used))
    for pair in made:
        high, low = pair.chosen.final_reward, pair.rejected.final_reward
        assert high is not None and low is not None and high >= 0.7 > 0.5 > low
        assert pair.margin == high - low >= 0.2
        assert pair.chosen.prompt == pair.rejected.prompt == pair.prompt
        assert pair.chosen.completion != pair.rejected.completion


def of_users(sides: list[tuple[int, int]], tenants: int = 0) -> list[Pair]:
    """Pairs of these users; a user's tenant is the remainder of their number."""

    def side(place: int, user: int, kind: str) -> LabelledRow:
        tenant = f"tenant-{user % tenants}" if tenants else None
        return row(f"{kind}{place:03}", 1.0, user_id=f"user-{user}", tenant_id=tenant)

    return [Pair("p", side(i, a, "c"), side(i, b, "r"), 1.0) for i, (a, b) in enumerate(sides)]


SIDES = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=80)


@given(SIDES, st.floats(0.01, 1))
def test_no_user_is_behind_more_than_their_share(sides: list[tuple[int, int]], share: float) -> None:
    kept = cap_principals(of_users(sides), share)
    behind = Counter(user for p in kept for user in {p.chosen.user_id, p.rejected.user_id})
    assert all(count <= max(1, int(share * len(kept))) for count in behind.values())
    assert bool(kept) == bool(sides)


@given(SIDES, st.integers(1, 4), st.floats(0.01, 1))
def test_no_tenant_is_behind_more_than_their_share(sides: list[tuple[int, int]], tenants: int, share: float) -> None:
    found = of_users(sides, tenants)
    there = {each.tenant_id for p in found for each in (p.chosen, p.rejected)}
    kept = cap_principals(found, 1.0, share)
    behind = Counter(tenant for p in kept for tenant in {p.chosen.tenant_id, p.rejected.tenant_id})
    if len(there) > 1:
        fair = max(share, 1 / len(there - {None}))
        assert all(count <= max(1, int(fair * len(kept))) for tenant, count in behind.items() if tenant is not None)
    else:
        assert kept == found, "a lone tenant is not capped"
    assert len(cap_principals(found, share)) <= len(kept)


def test_a_flood_costs_the_others_nothing() -> None:
    honest = [(n, n) for n in range(100, 200)]
    kept = cap_principals(of_users([*honest, *[(1, 1)] * 400]), 0.02)
    users = Counter(pair.chosen.user_id for pair in kept)
    assert users.pop("user-1") == 2  # of 102
    assert len(users) == 100
