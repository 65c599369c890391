"""Figures of a scorer against known thumbs."""

import random

import pytest

from pipeline.rewards.reward_model.measures import auc, calibration, ordered_within


def test_auc_is_the_chance_that_up_scores_over_down() -> None:
    users = [f"u{n}" for n in range(10)]
    scores, ups = [0.1, 0.4, 0.4, 0.8] + [0.5] * 6, [False, True, False, True] + [True, False] * 3
    liked = [score for score, up in zip(scores, ups, strict=True) if up]
    pairs = [(a, b) for a in liked for b, up in zip(scores, ups, strict=True) if not up]
    expected = sum((a > b) + 0.5 * (a == b) for a, b in pairs) / len(pairs)
    assert auc(scores, ups, users).value == pytest.approx(expected)


def test_auc_of_flipped_thumbs_is_below_one_half() -> None:
    dice = random.Random(1)
    scores = [dice.random() for _ in range(300)]
    area = auc(scores, [score < 0.5 for score in scores], [f"u{n % 30}" for n in range(300)])
    assert area.value == 0.0
    assert area.high == pytest.approx(0.1), "three of thirty users could have been otherwise"


def test_auc_of_few_users_has_no_interval_and_no_value() -> None:
    area = auc([0.1, 0.9] * 50, [False, True] * 50, [f"u{n % 9}" for n in range(100)])
    assert (area.value, area.n) == (None, 100)


def test_a_users_thumbs_are_not_independent() -> None:
    dice = random.Random(2)
    ups = [dice.random() < 0.5 for _ in range(30)]
    scores = [dice.gauss(up, 1) for up in ups]
    alone = auc(scores * 10, ups * 10, [f"u{n}" for n in range(300)])
    together = auc(scores * 10, ups * 10, [f"u{n % 30}" for n in range(300)])
    assert alone.value == together.value
    assert None not in (alone.low, alone.high, together.low, together.high)
    assert together.high - together.low > 2 * (alone.high - alone.low)


def test_order_within_counts_pairs_of_one_prompt_only() -> None:
    prompts = [name for n in range(12) for name in (f"p{n}", f"p{n}")]
    right = ordered_within(prompts, [n + 10.0 * (n % 2) for n in range(24)], [0.0, 1.0] * 12)
    assert (right.value, right.n) == (1.0, 12)
    assert right.low == pytest.approx(0.75)
    wrong_way = ordered_within(prompts, [0.9, 0.1] * 12, [0.0, 1.0] * 12)
    assert wrong_way.value == 0.0
    assert ordered_within(prompts, [0.5] * 24, [0.0, 1.0] * 12).value == 0.5
    assert ordered_within([f"p{n}" for n in range(24)], [0.5] * 24, [0.0, 1.0] * 12).n == 0
    assert ordered_within(prompts, [0.9, 0.1] * 12, [1.0] * 24).n == 0, "equal truths make no pair"


def test_calibration_is_the_distance_of_score_and_share() -> None:
    error, bins = calibration([0.2] * 10 + [0.9] * 10, [True] * 2 + [False] * 8 + [True] * 4 + [False] * 6)
    assert error == pytest.approx(0.25)
    assert [(each.n, each.up) for each in bins] == [(10, 0.2), (10, 0.4)]
    assert calibration([1.0], [True])[0] == 0
    assert calibration([], []) == (None, ())
