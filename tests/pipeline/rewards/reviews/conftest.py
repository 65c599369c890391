"""A week of reviews over a label table of twenty rows."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.estimate import UNKNOWN
from pipeline.recipe import Selection
from pipeline.recipe.rewards import Review
from pipeline.rewards import reviews
from pipeline.rewards.records import LABELS, HumanAgreement, RewardLabels
from pipeline.rewards.reviews import sheet
from pipeline.storage import DatasetRef, Store

WEEK = "2026-W47"
EVERYTHING = Review(share=1.0)
Rows = list[dict[str, Any]]


def label(at: int, **changes: Any) -> dict[str, Any]:
    row = {
        "trace_id": f"t{at:04d}",
        "observation_id": "o",
        "day": f"2026-01-0{1 + at % 5}",
        "user_id": f"user-{at % 7}",
    }
    row |= {"timestamp": datetime(2026, 1, 5, tzinfo=UTC), "prompt": json.dumps([{"role": "user", "content": "2+2?"}])}
    row |= {"completion": f"It is {at}.", "reference": "4", "final_reward": at % 10 / 9, "reason": "", "missing": "{}"}
    return {**row, **changes}


def table(rows: Rows) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=LABELS)


def published(folder: Path, rows: Rows) -> RewardLabels:
    """A label table on disk, and as much of its record as a review reads."""
    (folder / "labels").mkdir(parents=True, exist_ok=True)
    pq.write_table(table(rows), folder / "labels" / "part.parquet")
    humans = HumanAgreement(rank_correlation=UNKNOWN, noise=UNKNOWN, reviews=0)
    dataset = DatasetRef(uri=str(folder / "labels"), rows=len(rows), digest="d")
    return RewardLabels.model_construct(iteration="i", dataset=dataset, humans=humans)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data")


@pytest.fixture
def week(store: Store, tmp_path: Path) -> Path:
    """The folder of a week in which 20 labels are asked about."""
    written = reviews.write(store, published(tmp_path, [label(at) for at in range(20)]), WEEK, EVERYTHING, Selection())
    assert written is not None
    return written.parent


def sample(folder: Path) -> dict[str, dict[str, Any]]:
    """The kept rows by trace."""
    rows = map(json.loads, (folder / "sample.jsonl").read_text().splitlines())
    return {row["trace_id"]: row for row in rows}


def filled(
    folder: Path,
    scores: Callable[[dict[str, str]], str],
    name: str = "sheet.csv",
    references: Callable[[dict[str, str]], str] = lambda row: "",
) -> Path:
    """The sheet with somebody's scores and answers in it."""
    rows = list(csv.DictReader(io.StringIO((folder / "sheet.csv").read_text("utf-8-sig"), newline="")))
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, sheet.COLUMNS)
    writer.writeheader()
    writer.writerows({**row, "human_score": scores(row), "human_reference": references(row)} for row in rows)
    (folder / name).write_text(out.getvalue(), "utf-8-sig", newline="")
    return folder / name
