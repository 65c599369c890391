"""What the label table says of itself, on tables small enough to count by hand."""

import json
from typing import Any

import pyarrow as pa
import pytest

from pipeline.core.estimate import UNKNOWN, share
from pipeline.rewards.records import LABELS, LOGGED
from pipeline.rewards.reviews import ReviewedLabel
from pipeline.rewards.summary import components, human_noise

PROMPT = json.dumps([{"role": "user", "content": "2+2?"}])
EMPTY: dict[str, Any] = {"prompt": PROMPT, "completion": "4", "weights": "{}", "missing": "{}", "reason": ""}


def table(rows: list[dict[str, Any]]) -> pa.Table:
    filled = [{"trace_id": f"t{at:03d}", "observation_id": "o", **EMPTY, **row} for at, row in enumerate(rows)]
    return pa.Table.from_pylist(filled, schema=LABELS)


def review(trace: int, score: float, **changes: Any) -> ReviewedLabel:
    result = ReviewedLabel(f"t{trace:03d}", "o", score)
    return result._replace(**changes)


def test_a_null_is_absent_or_has_a_reason_and_is_never_a_zero() -> None:
    silent = [{"missing": json.dumps({"judge": "budget"})}, {"missing": json.dumps({"judge": "prose", "correct": "x"})}]
    result = components(table([{"judge": 0.0}, {"judge": 1.0}, {"judge": 0.52}, *silent, {}, {"missing": None}]))
    judge = result["judge"]
    assert (judge.count, judge.distinct, judge.mean) == (3, 3, pytest.approx(0.506667, abs=1e-5))
    assert judge.missing == {"absent": 2, "budget": 1, "prose": 1}
    assert result["correct"].missing == {"absent": 6, "x": 1}
    assert result["latency"].mean is None
    assert list(result) == list(LOGGED)


def test_a_table_without_rows_says_nothing() -> None:
    empty = LABELS.empty_table()
    assert {each.count for each in components(empty).values()} == {0}
    assert human_noise(empty, []) == UNKNOWN


def test_people_are_held_against_the_labels_as_they_are_now() -> None:
    labels = table([{"final_reward": at / 10} for at in range(11)] + [{"final_reward": None, "reason": "timeout"}])
    reviews = [review(at, at / 10) for at in range(11)]
    reviews += [review(11, 1.0), review(99, 0.0), review(4, 1.0, observation_id="new")]
    assert human_noise(labels, reviews) == share(0, 10)  # at 0.5 a person takes no side
    assert human_noise(labels, [*reviews, *(review(at, 1.0) for at in (0, 2))]) == share(1, 9), "means of two"
