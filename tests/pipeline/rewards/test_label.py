from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.iteration import Iteration, identify
from pipeline.recipe import Rewards
from pipeline.rewards.composite import compose
from pipeline.rewards.label import COLUMNS, label_traces
from pipeline.rewards.verifiers import Grade, Outcome
from pipeline.storage import DatasetRef, ModelRef, Store

WEIGHTS = Rewards()
SHARES = st.floats(0, 1)


def test_a_trace_uses_the_components_that_apply() -> None:
    right, wrong = Grade(Outcome.correct, "30"), Grade(Outcome.wrong, "31")
    assert compose("#### 30", right, None, WEIGHTS).final_reward == 1.0
    assert compose("#### 31", wrong, None, WEIGHTS).final_reward == pytest.approx(0.1 / 1.1)
    assert compose("#### 31", wrong, 1.0, WEIGHTS).final_reward == pytest.approx(0.35 / 1.35)
    assert compose("anything", None, 1.0, WEIGHTS).final_reward == 1.0


@pytest.mark.parametrize("outcome", [Outcome.timeout, Outcome.error, Outcome.unparsable_gold])
def test_a_failed_check_is_null_even_with_feedback(outcome: Outcome) -> None:
    reward = compose("#### 30", Grade(outcome, ""), 1.0, WEIGHTS)
    assert (reward.final_reward, reward.reason) == (None, outcome.value)


def test_no_signal_is_null() -> None:
    assert compose("hello", None, None, WEIGHTS).reason == "no_signal"


@given(
    st.sampled_from([None, *(Grade(outcome, "") for outcome in Outcome)]),
    st.none() | SHARES,
    st.builds(Rewards, correct=SHARES, format=SHARES, feedback=SHARES),
)
def test_a_reward_is_in_range_or_null_with_a_reason(
    grade: Grade | None, feedback: float | None, weights: Rewards
) -> None:
    reward = compose("#### 1", grade, feedback, weights)
    assert (reward.final_reward is None) == bool(reward.reason)
    assert reward.final_reward is None or 0 <= reward.final_reward <= 1


def test_labels_are_published_once_with_their_provenance(tmp_path: Path) -> None:
    store = Store(tmp_path)
    rows = [
        ("a", "u", None, "2+2?", "#### 4", "4", None),
        ("b", None, "s", "2+2?", "#### 5", "4", 1.0),
        ("c", None, None, "hi", "hello", None, None),
        ("d", "u", None, "hi", "hello", None, 0.0),
        ("e", "u", None, "1+1?", "#### " + "(" * 200 + "2" + ")" * 200, "2", None),
    ]
    table = pa.Table.from_pylist(
        [dict(zip(COLUMNS, (*r[:3], [{"role": "user", "content": r[3]}], *r[4:]), strict=True)) for r in rows]
    )
    said: list[str] = []
    labels = label_traces(store, _iteration(), table, WEIGHTS, said.append)
    found = {row["trace_id"]: row for row in pq.read_table(labels.dataset.uri).to_pylist()}
    assert [found[k]["final_reward"] for k in "abcd"] == pytest.approx([1.0, 0.35 / 1.35, None, 0.0])
    assert found["e"]["final_reward"] is None
    assert (labels.labelled, labels.coverage, sum(labels.histogram)) == (3, 0.6, 3)
    assert labels.unlabelled == {"no_signal": 1, found["e"]["reason"]: 1}
    assert found["a"]["verifier"]
    assert [found[k]["user_id"] for k in "abc"] == ["u", "s", "c"]
    assert said == ["labelled 5 of 5 traces"]
    assert label_traces(store, _iteration(), table.slice(0, 0), WEIGHTS, said.append) == labels


def _iteration() -> Iteration:
    data = DatasetRef(uri="", rows=5, digest="d")
    return identify(0, "m", ModelRef(uri="", digest="m"), data, "r")
