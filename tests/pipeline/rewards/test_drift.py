"""Drift against the iteration before: which one that is, and the index against its textbook form."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.storage import Store
from pipeline.rewards.drift import RewardDistribution, against, record, stability_index

FLAT = (100,) * 20


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def distribution(iteration: str, number: int = 0, **changes: Any) -> RewardDistribution:
    fields = {"model_name": "m", "histogram": FLAT, "mean": 0.5}
    return RewardDistribution(iteration=iteration, number=number, **{**fields, **changes})


def before(store: Store, this: RewardDistribution) -> str | None:
    result = against(store, record(store, this))
    return result.against if result else None


def test_drift_compares_with_the_last_of_the_same_model(store: Store) -> None:
    assert before(store, distribution("first")) is None
    assert before(store, distribution("not-promoted")) == "first"
    assert before(store, distribution("other-model", model_name="n")) is None
    assert before(store, distribution("champion", number=1)) == "not-promoted"
    assert before(store, distribution("no-labels", number=1, histogram=(0,) * 20)) is None
    assert before(store, distribution("coarser", number=1, histogram=(1,) * 10)) is None
    assert before(store, distribution("next", number=2)) == "champion"
    assert before(store, distribution("of-an-old-champion", number=1)) == "champion"


def test_a_retry_is_held_against_the_same_one(store: Store) -> None:
    names = ["a", "b", "c"]
    matches = [before(store, distribution(name)) for name in names]
    kept = {path.name: path.read_bytes() for path in store.root.rglob("*.json")}
    assert [before(store, distribution(name)) for name in names] == matches == [None, "a", "b"]
    assert {path.name: path.read_bytes() for path in store.root.rglob("*.json")} == kept
    assert sorted(kept) == ["00000-a.json", "00000-b.json", "00000-c.json"]


def test_labels_made_again_keep_their_place(store: Store) -> None:
    for name in ("a", "b"):
        record(store, distribution(name))
    record(store, distribution("a", mean=0.1))
    result = against(store, record(store, distribution("b", mean=0.4)))
    assert result is not None
    assert (result.against, result.mean_change) == ("a", pytest.approx(0.3))
    assert result.stability_index == 0


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
