"""Which thumbs count, and who of the users trains and who measures."""

from collections import Counter

import pytest

from pipeline.recipe.rewards import RewardModelSettings
from pipeline.rewards.reward_model.records import Thumb, split_by_user, thumbs_of, too_little
from tests.pipeline.rewards.reward_model.conftest import likes_polite, rated

SETTINGS = RewardModelSettings()


def lacks(rows: list[Thumb]) -> str:
    thumbs, _ = thumbs_of(rows, SETTINGS, {})
    return too_little([(thumb.user_id, thumb.up) for thumb in thumbs], split_by_user(thumbs, SETTINGS))


def test_feedback_over_one_half_is_a_thumb_up() -> None:
    values = (0.51, 0.49, 0.5)
    rows = [row._replace(feedback=value) for row, value in zip(rated(3, 3, likes_polite), values, strict=True)]
    thumbs, counts = thumbs_of(rows, SETTINGS, {})
    assert [thumb.up for thumb in thumbs] == [True, False]
    assert (counts.thumbs, counts.users, counts.left_out) == (2, 2, {"contradictory feedback": 1})


def test_a_thumb_on_an_empty_answer_does_not_count() -> None:
    rows = rated(60, 20, likes_polite)
    thumbs, counts = thumbs_of([rows[0]._replace(completion=" \n"), *rows[1:]], SETTINGS, {"calls tools": 2})
    assert len(thumbs) == 59
    assert counts.left_out == {"calls tools": 2, "empty answer": 1}


def test_one_user_with_half_of_the_thumbs_is_capped() -> None:
    rows = rated(600, 100, likes_polite)
    rows = [row._replace(user_id="loud") if number < 300 else row for number, row in enumerate(rows)]
    thumbs, counts = thumbs_of(rows, SETTINGS, {})
    loud = Counter(thumb.user_id for thumb in thumbs)["loud"]
    assert loud <= 2 / counts.users * len(thumbs)
    assert counts.left_out == {"over a user's share": 300 - loud}
    assert counts.largest_user_share <= 2 / counts.users


def test_the_order_of_rows_decides_nothing() -> None:
    rows = [row._replace(user_id="loud") if n % 3 == 0 else row for n, row in enumerate(rated(300, 40, likes_polite))]
    assert thumbs_of(rows, SETTINGS, {}) == thumbs_of(rows[::-1], SETTINGS, {})


def test_users_are_split_and_never_rows() -> None:
    thumbs, _ = thumbs_of(rated(400, 40, likes_polite), SETTINGS, {})
    parts = split_by_user(thumbs, SETTINGS)
    assert set(parts) == {thumb.user_id for thumb in thumbs}
    assert Counter(parts.values()) == {"train": 27, "held_out": 10, "validation": 3}
    assert split_by_user(thumbs, SETTINGS.model_copy(update={"seed": 1})) != parts
    more = split_by_user(thumbs, SETTINGS.model_copy(update={"validation_users": 0.4}))
    assert {u for u in parts if parts[u] == "held_out"} == {u for u in more if more[u] == "held_out"}


def flat(feedback: float) -> list[Thumb]:
    return [row._replace(feedback=feedback) for row in rated(200, 40, likes_polite)]


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (rated(5, 5, likes_polite), "5 thumbs of 5 users: at least 40 of 10 are needed"),
        ([row._replace(user_id="one") for row in rated(100, 1, likes_polite)], "thumbs of 1 users"),
        (flat(0.9), "0 thumbs down of the users of the part train"),
        (flat(0.1), "0 thumbs up and"),
        (flat(0.5), "0 thumbs"),
    ],
)
def test_too_little_to_learn_from_is_said(rows: list[Thumb], reason: str) -> None:
    assert reason in lacks(rows)
