"""What the label table says of itself, on tables small enough to count by hand."""

import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.estimate import UNKNOWN, share
from pipeline.core.storage import Store
from pipeline.rewards.records import LABELS, LOGGED
from pipeline.rewards.reviews import ReviewedLabel
from pipeline.rewards.summary import RewardDistribution, components, drift, human_noise, stability_index

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


def distribution(iteration: str, **changes: Any) -> RewardDistribution:
    fields = {"model_name": "m", "histogram": (100,) * 20, "mean": 0.5}
    return RewardDistribution(key=iteration, **{**fields, **changes})


def before(store: Store, this: RewardDistribution) -> str | None:
    result = drift(store, this)
    return result.against if result else None


def test_drift_compares_with_the_last_of_the_same_model(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert before(store, distribution("first")) is None
    assert before(store, distribution("not-promoted")) == "first"
    assert before(store, distribution("other-model", model_name="n")) is None
    assert before(store, distribution("champion")) == "not-promoted"
    assert before(store, distribution("no-labels", histogram=(0,) * 20)) is None
    assert before(store, distribution("next")) == "champion"
    assert before(store, distribution("champion")) == "not-promoted", "it was run again"
    assert before(store, distribution("first", mean=0.1)) is None, "labels made again keep their place"
    result = drift(store, distribution("not-promoted", mean=0.4))
    assert result is not None and (result.against, result.stability_index) == ("first", 0)
    assert result.mean_change == pytest.approx(0.3)


def test_the_index_is_the_textbook_one() -> None:
    p, q = [0.25, 0.25, 0.5], [0.4, 0.1, 0.5]
    expected = sum((b - a) * math.log(b / a) for a, b in zip(p, q, strict=True))
    assert stability_index([25, 25, 50], [400, 100, 500]) == pytest.approx(expected)


counts = st.lists(st.integers(0, 1_000) | st.integers(0, 10**18), min_size=5, max_size=5).filter(any)


@given(counts, counts)
def test_the_index_is_finite_symmetric_and_zero_for_the_same(before: list[int], after: list[int]) -> None:
    result = stability_index(before, after)
    assert 0 <= result < math.inf
    assert result == pytest.approx(stability_index(after, before))
    assert stability_index(before, before) == 0
