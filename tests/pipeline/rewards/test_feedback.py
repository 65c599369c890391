"""Feedback: what one call's answers are worth, and what is an answer at all."""

from __future__ import annotations

import json
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.recipe.rewards import Feedback
from pipeline.rewards.feedback import principal, settle, tenant_of
from tests.pipeline.rewards.feedback_rows import DOWN, UP, Opinion, call, settled


@pytest.mark.parametrize(
    ("scores", "value", "answers"),
    [
        ([UP], 0.75, 1),
        ([DOWN], 0.25, 1),
        ([("stars", 0.5)], 0.5, 1),
        ([(f"question {n}", 1.0) for n in range(10)], 10.5 / 11, 10),
        ([UP] * 100, 0.75, 1),  # clicking a hundred times is one answer
        ([UP, DOWN], 0.5, 1),  # so is changing one's mind
        ([UP, ("stars", 0.0)], 0.5, 2),
        ([("retry", 0.0)], 1 / 3, 0.5),
        ([("retry", 0.0), ("retry", 0.0)], 1 / 3, 0.5),
        ([UP, ("retry", 0.0)], 0.6, 1.5),
        ([UP, ("retry", 1.0)], 0.75, 1),  # it says that there was none
        ([UP, ("judge", None, "EVAL"), ("retry", None, "EVAL")], 0.75, 1),
        ([UP, ("comment", None)], 0.75, 1),
        ([UP, ("stars", 7.0), ("stars", -1.0), ("stars", float("nan"))], 0.75, 1),
    ],
)
def test_an_opinion_is_as_strong_as_its_answers(scores: list[Any], value: float, answers: float) -> None:
    result = settled([call("t", *scores)])
    assert result == {"t": Opinion(pytest.approx(value), answers, "")}


@pytest.mark.parametrize(
    "scores", [[], [("judge", None, "EVAL")], [("comment", None)], [("retry", 1.0)], [("stars", 5.0)]]
)
def test_who_said_nothing_has_no_row(scores: list[Any]) -> None:
    assert settled([call("t", *scores)]) == {}


def test_no_feedback_at_all_is_an_empty_table() -> None:
    assert settle([], Feedback()).num_rows == 0
    assert settled([call("t")]) == {}


def test_the_prior_is_the_recipes() -> None:
    assert settled([call("t", UP)], prior_strength=0.0)["t"].value == 1.0
    assert settled([call("t", UP)], prior_strength=9.0)["t"].value == pytest.approx(0.55)
    assert settled([call("t", ("again", 0.0), ("retry", 1.0))], retry_name="again")["t"].answers == 1.5


def test_asking_the_same_again_counts_against_the_earlier_call() -> None:
    rows = [call("a", ask="why?", at=0), call("b", UP, ask="why?", at=300), call("c", ask="and?", at=301)]
    assert settled(rows) == {"a": Opinion(pytest.approx(1 / 3), 0.5, ""), "b": Opinion(0.75, 1, "")}


@pytest.mark.parametrize(
    "later",
    [
        {"at": 301},
        {"at": 0},  # side by side: an application that samples several answers
        {"user": "bob"},
        {"user": None},
        {"session": "s2"},
        {"session": None},
        {"ask": "why not?"},
    ],
)
def test_anything_else_is_no_retry(later: dict[str, Any]) -> None:
    assert settled([call("a", ask="why?", at=0), call("b", **({"ask": "why?", "at": 60} | later))]) == {}


@pytest.mark.parametrize("nobody", [{"user": None}, {"session": None}, {"user": ""}, {"session": ""}])
def test_strangers_never_retry(nobody: dict[str, Any]) -> None:
    assert settled([call("a", ask="why?", at=0, **nobody), call("b", ask="why?", at=9, **nobody)]) == {}


def test_a_window_of_zero_means_never() -> None:
    rows = [call("a", ask="why?", at=0), call("b", ask="why?", at=1)]
    assert settled(rows, retry_window_s=0) == {}
    assert settled(rows, retry_window_s=1).keys() == {"a"}


def test_each_repetition_is_a_retry_of_the_call_before() -> None:
    rows = [call(f"t{n}", ask="why?", at=100 * n) for n in range(4)]
    assert {trace: result.answers for trace, result in settled(rows, size=1).items()} == dict.fromkeys(
        ("t0", "t1", "t2"), 0.5
    )


def test_feedback_is_about_the_turn_that_it_was_given_on() -> None:
    turns = [call("a", at=0), call("b", at=10), call("c", UP, at=20), call("d", at=30), call("e", DOWN, at=40)]
    others = [call("x", at=5, session="s2"), call("y", at=5, user="bob"), call("z", at=5, session=None)]
    rows = [*turns, *others]
    assert settled(rows).keys() == {"c", "e"}
    reached = settled(rows, turns="earlier", size=2)
    assert {trace: each.value for trace, each in reached.items()} == {
        **dict.fromkeys("abc", 0.75),
        **dict.fromkeys("de", 0.25),
    }
    capped = settled(rows, turns="earlier", max_per_user=2)
    assert sum(each.reason == "" for each in capped.values()) == 2, "a turn that is reached counts under the caps"


SCORES = st.lists(
    st.tuples(
        st.sampled_from(["thumb", "stars", "retry"]),
        st.none() | st.sampled_from([0.0, 0.5, 1.0]) | st.floats(),
        st.sampled_from(["API", "ANNOTATION"]),
    ),
    max_size=6,
)


@pytest.mark.slow
@settings(max_examples=25)
@given(st.lists(SCORES, min_size=1, max_size=8), st.floats(0.01, 10), st.randoms())
def test_values_follow_the_rule_whatever_is_said(said: list[list[Any]], strength: float, chance: Any) -> None:
    rows = [call(f"t{n}", *scores, user=f"u{n}", at=n) for n, scores in enumerate(said)]
    expected: dict[str, Opinion] = {}
    for n, scores in enumerate(said):
        mine = [(name, value) for name, value, _ in scores if value is not None]
        answers = [
            sum(values) / len(values)
            for wanted in ("thumb", "stars")
            if (values := [v for name, v in mine if name == wanted and 0 <= v <= 1])
        ]
        weight = len(answers) + 0.5 * any(name == "retry" and value < 0.5 for name, value in mine)
        if weight:
            value = pytest.approx((sum(answers) + strength / 2) / (weight + strength))
            expected[f"t{n}"] = Opinion(value, weight, "")
    result = settled(rows, prior_strength=strength)
    assert result == expected
    assert all(opinion.value is not None and 0 < opinion.value < 1 for opinion in result.values())
    for row in rows:
        chance.shuffle(row["feedback"])
    chance.shuffle(rows)
    assert settled(rows, size=3, prior_strength=strength) == result  # to the last bit


def test_the_order_of_answers_changes_no_bit() -> None:
    """0.1 + 0.2 + 0.3 is another number from the left than from the right."""
    reported = list(permutations([0.1, 0.2, 0.3]))
    same_name = [call(f"a{n}", *(("stars", value) for value in values)) for n, values in enumerate(reported)]
    each_its_own = [
        call(f"b{n}", *((f"q{at}", value) for at, value in enumerate(values))) for n, values in enumerate(reported)
    ]
    for rows in (same_name, each_its_own):
        assert len(set(settled(rows).values())) == 1


# Whose word it is


NAMES = st.none() | st.sampled_from(["", "a", "session:a", "trace:a", "user:a", "user:user:a", "user:session:a"])


@given(NAMES, NAMES, NAMES, NAMES)
def test_no_two_principals_share_a_name(
    user: str | None, session: str | None, other: str | None, place: str | None
) -> None:
    def who(user: str | None, session: str | None) -> tuple[str, str]:
        return ("user", user) if user else ("session", session) if session else ("trace", "a")

    same = who(user, session) == who(other, place)
    assert (principal(user, session, "a") == principal(other, place, "a")) == same


def test_a_principal_is_the_user_if_there_is_one() -> None:
    assert principal("ann", "s", "t") == "ann"
    assert principal(None, "s", "t") == "session:s"
    assert principal("", "", "t") == "trace:t"


@pytest.mark.parametrize(
    ("metadata", "tenant"),
    [
        ('{"org": "acme"}', "acme"),
        ('{"org": "\\"acme\\""}', "acme"),
        ('{"org": 7}', "7"),
        ('{"org": {"id": 7}}', '{"id":7}'),
        ('{"org": null}', None),
        ('{"org": ""}', None),
        ('{"org": "null"}', "null"),
        ('{"other": "acme"}', None),
        ("[]", None),
        ("", None),
        ("{", None),
        ("[" * 100_000, None),
    ],
)
def test_a_tenant_is_what_the_metadata_says(metadata: str, tenant: str | None) -> None:
    assert tenant_of(metadata, "org") == tenant


@given(st.text())
def test_any_text_can_name_a_tenant(name: str) -> None:
    assert tenant_of(json.dumps({name: {"x": 1}}), name) == '{"x":1}'
