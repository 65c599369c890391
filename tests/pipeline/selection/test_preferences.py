import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.iteration import identify
from pipeline.recipe import Selection
from pipeline.rewards.label import LABELS
from pipeline.selection.evidence import Labelled
from pipeline.selection.preferences import Pair, build, by_prompt, cap_principals, normalised, pairs, prompts
from pipeline.storage import DatasetRef, ModelRef, Store, digest_file

THRESHOLDS = Selection()


def row(trace: str, reward: float | None, prompt: str = "p", **fields: object) -> Labelled:
    chat = json.dumps([{"role": "user", "content": prompt}])
    correct = None if reward is None else float(reward > 0.5)
    usual = {"user_id": trace, "completion": f"c-{trace}", "reference": "1", "correct": correct, "feedback": None}
    return Labelled(trace_id=trace, prompt=chat, final_reward=reward, **{**usual, **fields})


def test_best_is_paired_with_worst() -> None:
    group = by_prompt([row("a", 1.0), row("b", 0.1), row("c", 0.9), row("d", 0.4), row("e", None)])
    (pair,) = pairs(group, THRESHOLDS)
    assert (pair.traces, pair.margin) == (("a", "b"), 0.9)
    two = pairs(group, THRESHOLDS.model_copy(update={"max_pairs_per_prompt": 2}))
    assert [p.traces for p in two] == [("a", "b"), ("c", "d")]


@pytest.mark.parametrize(
    ("high", "low"),
    [(0.69, 0.1), (0.9, 0.5), (None, 0.1), (0.7, None)],
    ids=["chosen too low", "rejected too high", "no chosen", "no rejected"],
)
def test_no_pair_outside_the_thresholds(high: float | None, low: float | None) -> None:
    assert pairs(by_prompt([row("a", high), row("b", low)]), THRESHOLDS) == []


def test_no_pair_of_equal_texts_or_across_prompts() -> None:
    assert pairs(by_prompt([row("a", 1.0, completion="same"), row("b", 0.0, completion="same")]), THRESHOLDS) == []
    assert pairs(by_prompt([row("a", 1.0, prompt="one"), row("b", 0.0, prompt="two")]), THRESHOLDS) == []


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 1) | st.none()), max_size=30), st.randoms())
def test_pairs_do_not_depend_on_the_order_of_traces(found: list[tuple[str, float | None]], dice: object) -> None:
    rows = [row(f"t{i:02}", reward, prompt=prompt) for i, (prompt, reward) in enumerate(found)]
    mixed = list(rows)
    dice.shuffle(mixed)  # type: ignore[attr-defined]
    key = lambda pair: pair.traces  # noqa: E731
    made = sorted(pairs(by_prompt(rows), THRESHOLDS), key=key)
    assert made == sorted(pairs(by_prompt(mixed), THRESHOLDS), key=key)
    assert all(p.margin >= THRESHOLDS.margin_min for p in made)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=80), st.floats(0.01, 1))
def test_no_user_is_behind_more_than_their_share(users: list[tuple[int, int]], share: float) -> None:
    found = [
        Pair(prompt=str(i), chosen="", rejected="", margin=1, traces=("", ""), users=(str(a), str(b)))
        for i, (a, b) in enumerate(users)
    ]
    kept = cap_principals(found, share)
    for user in {u for p in kept for u in p.users}:
        assert sum(user in p.users for p in kept) <= max(1, int(share * len(kept)))


def test_prompts_are_verifiable_and_not_solved() -> None:
    solved = [row(f"s{i}", 1.0, prompt="solved") for i in range(3)]
    mixed = [row("m1", 1.0, prompt="mixed"), row("m2", 0.0, prompt="mixed")]
    open_ended = [row("o", 1.0, prompt="open", reference=None)]
    found = prompts(by_prompt([*solved, *mixed, *open_ended]))
    assert [(r["prompt"][0]["content"], r["mixed"]) for r in found] == [("mixed", True)]


def test_build_publishes_trl_columns_without_held_out_prompts(tmp_path: Path) -> None:
    rows = [row(f"{i}-{j}", j / 1, prompt=f"What is {i}?") for i in range(150) for j in (0, 1)]
    labels = write(tmp_path, rows)
    hidden = {normalised(rows[0].prompt)}
    store, iteration = Store(tmp_path), identify(0, "m", ModelRef(uri="", digest="m"), labels, "r")
    dataset = build(store, iteration, labels, THRESHOLDS, hidden)
    assert (dataset.contaminated, dataset.pairs.rows, dataset.prompts.rows) == (2, 149, 149)
    pair = pq.read_table(dataset.pairs.uri).to_pylist()[0]
    assert [m["role"] for key in ("prompt", "chosen", "rejected") for m in pair[key]] == [
        "user",
        "assistant",
        "assistant",
    ]
    assert dataset.evidence.zero_variance_share == 0
    assert build(store, iteration, labels, THRESHOLDS, set()) == dataset


def test_a_broken_split_is_an_error(tmp_path: Path) -> None:
    rows = [row(str(i), 1.0, prompt=f"What is {i}?") for i in range(10)]
    labels = write(tmp_path, rows)
    iteration = identify(0, "m", ModelRef(uri="", digest="m"), labels, "r")
    with pytest.raises(ValueError, match="1 of 10 traces ask held-out questions"):
        build(Store(tmp_path), iteration, labels, THRESHOLDS, {"what is 3?"})


def write(folder: Path, rows: list[Labelled]) -> DatasetRef:
    path = folder / "labels.parquet"
    full = [{**dict.fromkeys(LABELS.names), **r._asdict()} for r in rows]
    pq.write_table(pa.Table.from_pylist(full, schema=LABELS), path)
    return DatasetRef(uri=str(path), rows=len(rows), digest=digest_file(path))
