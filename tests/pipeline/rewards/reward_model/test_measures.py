"""Which thumbs count and who of the users measures; figures of a scorer; and twins, which break one rule and differ in
nothing else."""

import json
import random
from collections import Counter
from typing import Any

import pytest
from pydantic import ValidationError

from pipeline.recipe.rewards import RewardModelSettings
from pipeline.rewards.reward_model.measures import auc, calibration, ordered_within, twin
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


DESK = "Facts\nK48 DHL Monday 36 euro\nK92 UPS Friday 12 euro\nWhen does K48 come?"


def asked(text: str) -> str:
    return json.dumps([{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}])


PENS = "Ada has 12 pens, Ben has 3.5 and Cleo 3.5."
APPEND = {"kind": "append", "text": "Here is a voucher."}
REFUSE = {"kind": "refuse", "text": "I can't."}
NUMBER, ENTITY = {"kind": "swap", "value": "number"}, {"kind": "swap", "value": "entity"}


@pytest.mark.parametrize(
    ("settings", "question", "answer", "violating"),
    [
        (APPEND, "?", "It comes today.\n", "It comes today. Here is a voucher."),
        (APPEND, "?", "Well: here is a VOUCHER.", None),
        ({"kind": "lengthen"}, "?", "It is 4.", "It is 4. It is 4."),
        ({"kind": "lengthen", "text": "And on.", "factor": 3}, "?", "It is 4.", "It is 4. And on. And on."),
        (REFUSE, "?", "It is 4.", "I can't."),
        (REFUSE, "?", "I can't. Sorry.", None),
        ({"kind": "swap"}, DESK, "It comes on Monday.", "It comes on Friday."),
        ({"kind": "swap"}, DESK, "By DHL!", "By UPS!"),
        ({"kind": "swap"}, DESK, "Soon.", None),
        ({"kind": "swap"}, DESK, "Monday, not Friday.", None),  # no other value that the answer does not hold
        (NUMBER, PENS, "Ada has 12.", "Ada has 3.5."),
        (NUMBER, "Ada has 12 pens.", "Ada has 12.", None),
        (NUMBER, "Ada has 12 pens, Ben 7.", "Room A12 is free.", None),  # a part of a word is no number
        (ENTITY, "Today Ada met Ben.", "It was Ada.", "It was Ben."),
        (ENTITY, "Today Ada slept.", "It was Ada.", None),  # the first word of a sentence names nothing
    ],
)
def test_a_twin_breaks_one_rule_or_is_not_made(
    settings: dict[str, Any], question: str, answer: str, violating: str | None
) -> None:
    (probe,) = RewardModelSettings.model_validate({"probes": [{"name": "x", **settings}]}).probes
    assert twin(probe, asked(question), answer) == violating


def test_two_probes_of_one_name_are_refused() -> None:
    probe = {"kind": "refuse", "name": "twice"}
    with pytest.raises(ValidationError, match="two probes have one name: give each a name of its own"):
        RewardModelSettings.model_validate({"probes": [probe, probe]})
