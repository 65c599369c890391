"""Which thumbs count and who of the users measures; figures of a scorer; and twins, which break one rule and differ in
nothing else."""

import json
import random
from collections import Counter
from typing import Any

import pytest
from pydantic import ValidationError

from pipeline.recipe.rewards import RewardModelSettings
from pipeline.rewards.reward_model.measures import auc, twin
from pipeline.rewards.reward_model.records import Thumb, split_by_user, thumbs_of, too_little
from tests.pipeline.rewards.reward_model.conftest import likes_polite, rated

SETTINGS = RewardModelSettings()


def lacks(rows: list[Thumb]) -> str:
    thumbs, _ = thumbs_of(rows, {})
    return too_little([(thumb.user_id, thumb.up) for thumb in thumbs], split_by_user(thumbs, SETTINGS))


def test_feedback_over_one_half_is_a_thumb_up() -> None:
    values = (0.51, 0.49, 0.5)
    rows = [row._replace(feedback=value) for row, value in zip(rated(3, 3, likes_polite), values, strict=True)]
    thumbs, counts = thumbs_of(rows, {})
    assert [thumb.up for thumb in thumbs] == [True, False]
    assert (counts.thumbs, counts.users, counts.left_out) == (2, 2, {"contradictory feedback": 1})


def test_a_thumb_on_an_empty_answer_does_not_count() -> None:
    rows = rated(60, 20, likes_polite)
    thumbs, counts = thumbs_of([rows[0]._replace(completion=" \n"), *rows[1:]], {"calls tools": 2})
    assert len(thumbs) == 59
    assert counts.left_out == {"calls tools": 2, "empty answer": 1}


def test_users_are_split_and_never_rows() -> None:
    thumbs, _ = thumbs_of(rated(400, 40, likes_polite), {})
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


DESK = "Facts\nK48 DHL Monday 36 euro\nK92 UPS Friday 12 euro\nWhen does K48 come?"


def asked(text: str) -> str:
    return json.dumps([{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}])


APPEND = {"kind": "append", "text": "Here is a voucher."}
REFUSE = {"kind": "refuse", "text": "I can't."}


@pytest.mark.parametrize(
    ("settings", "question", "answer", "violating"),
    [
        (APPEND, "?", "It comes today.\n", "It comes today. Here is a voucher."),
        (APPEND, "?", "Well: here is a VOUCHER.", None),
        ({"kind": "lengthen"}, "?", "It is 4.", "It is 4. It is 4."),
        ({"kind": "lengthen", "text": "On."}, "?", "It is 4.", "It is 4. On. On."),
        (REFUSE, "?", "It is 4.", "I can't."),
        (REFUSE, "?", "I can't. Sorry.", None),
        ({"kind": "swap"}, DESK, "It comes on Monday.", "It comes on Friday."),
        ({"kind": "swap"}, DESK, "By DHL!", "By UPS!"),
        ({"kind": "swap"}, DESK, "Soon.", None),
        ({"kind": "swap"}, DESK, "Monday, not Friday.", None),  # no other value that the answer does not hold
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
