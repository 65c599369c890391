"""Labelling: `final_reward` with its provenance for every governed trace of an iteration.

Owns the label table and its coverage. A failure of one record is a null with a reason in that record; it never stops
the others and never becomes a 0.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.iteration import Iteration
from pipeline.recipe import Rewards
from pipeline.rewards.composite import compose
from pipeline.rewards.verifiers import VERSION, Grade, grader
from pipeline.storage import DatasetRef, Record, Store, digest_file

BATCH = 1000
COLUMNS = ["trace_id", "user_id", "session_id", "messages", "completion", "reference", "feedback_mean"]
"""What labelling reads of the governed table."""

LABELS = pa.schema(
    [("trace_id", pa.string()), ("user_id", pa.string()), ("prompt", pa.string()), ("completion", pa.string())]
    + [("reference", pa.string()), ("outcome", pa.string()), ("answer", pa.string())]
    + [(name, pa.float64()) for name in ("correct", "format", "feedback", "final_reward")]
    + [("reason", pa.string()), ("verifier", pa.string())]
)


class RewardLabels(Record):
    """The label table and what a person wants to know of it first."""

    iteration: str
    dataset: DatasetRef
    labelled: int
    coverage: float
    """labelled / rows, in [0, 1]."""
    unlabelled: dict[str, int]
    """Rows without a label, by reason."""
    outcomes: dict[str, int]
    """Verifier outcomes; `no_reference` counts rows that could not be verified."""
    mean_reward: float
    histogram: tuple[int, ...]
    """Labels in 20 equal bins of [0, 1]."""


def label_traces(
    store: Store, iteration: Iteration, traces: pa.Table, weights: Rewards, log: Callable[[str], None]
) -> RewardLabels:
    """Label every governed trace once and publish the table.

    `traces` has the governed table's `COLUMNS`; `reference` and `feedback_mean` (in [0, 1]) may be null.
    """

    def make() -> RewardLabels:
        rows: list[dict[str, Any]] = []
        with grader(weights.workers, weights.timeout_s) as check:
            for batch in traces.to_batches(max_chunksize=BATCH):
                rows += _label(batch.to_pylist(), check, weights)
                log(f"labelled {len(rows)} of {traces.num_rows} traces")
        folder = iteration.path("reward_labels")
        with store.staged(folder) as staging:
            pq.write_table(pa.Table.from_pylist(rows, schema=LABELS), staging / "labels.parquet")
        path = store.path(folder, "labels.parquet")
        return summarise(iteration.id, DatasetRef(uri=str(path), rows=len(rows), digest=digest_file(path)), rows)

    return store.once(iteration.path("reward_labels.json"), RewardLabels, make)


def _label(
    batch: Sequence[dict[str, Any]], check: Callable[[Sequence[tuple[str, str]]], list[Grade]], weights: Rewards
) -> list[dict[str, Any]]:
    verifiable = [row for row in batch if row["reference"]]
    found = check([(row["completion"], row["reference"]) for row in verifiable])
    grades = {row["trace_id"]: grade for row, grade in zip(verifiable, found, strict=True)}
    labelled: list[dict[str, Any]] = []
    for row in batch:
        grade = grades.get(row["trace_id"])
        reward = compose(row["completion"], grade, row["feedback_mean"], weights)
        labelled.append(
            {
                **{name: row[name] for name in ("trace_id", "completion", "reference")},
                "prompt": chat_json(row["messages"]),
                "user_id": row["user_id"] or row["session_id"] or row["trace_id"],
                "outcome": grade.outcome.value if grade else "no_reference",
                "answer": grade.answer if grade else None,
                **reward._asdict(),
                "verifier": VERSION if grade else None,
            }
        )
    return labelled


def chat_json(messages: Sequence[dict[str, Any]]) -> str:
    """Chat messages as canonical JSON of role and content: equal prompts are equal strings."""
    return json.dumps([{"role": m["role"], "content": m["content"]} for m in messages], ensure_ascii=False)


def summarise(iteration: str, dataset: DatasetRef, rows: Sequence[dict[str, Any]]) -> RewardLabels:
    rewards = [row["final_reward"] for row in rows if row["final_reward"] is not None]
    bins, _ = np.histogram(rewards, bins=20, range=(0.0, 1.0))
    return RewardLabels(
        iteration=iteration,
        dataset=dataset,
        labelled=len(rewards),
        coverage=len(rewards) / len(rows) if rows else 0.0,
        unlabelled=dict(Counter(row["reason"] for row in rows if row["reason"])),
        outcomes=dict(Counter(row["outcome"] for row in rows)),
        mean_reward=float(np.mean(rewards)) if rewards else 0.0,
        histogram=tuple(int(n) for n in bins),
    )
