"""A day that is exported anew in another form has the same rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.storage import Store
from pipeline.traces.lake import local_lake
from pipeline.traces.materialize import read

from .conftest import Run, observation, write

pytestmark = pytest.mark.slow

Rows = list[dict[str, Any]]
NAME = "observations_v2/2026-01-05.jsonl"
TIMES = ("start_time", "end_time", "updated_at")


def call(number: int) -> dict[str, Any]:
    """A call of a second. What an export says of its latency, it has said in seconds and in milliseconds."""
    end = f"2026-01-05 10:00:{number + 1:02d}.000000"
    return observation(number, end_time=end, latency=1.0, usage_details={"input": 7}, release="v7", tags=["desk"])


def in_milliseconds(rows: Rows) -> Rows:
    return [{**row, "latency": row["latency"] * 1000} for row in rows]


def epochs(rows: Rows, per_second: int) -> Rows:
    def epoch(text: str) -> int:
        moment = datetime.fromisoformat(text).replace(tzinfo=UTC)
        return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * per_second // 10**6

    return [{**row, **{key: epoch(row[key]) for key in TIMES}} for row in rows]


def elsewhere(rows: Rows) -> Rows:
    """Times with a zone, as another driver writes them."""
    zone = timedelta(hours=5, minutes=30)

    def local(text: str) -> str:
        return f"{(datetime.fromisoformat(text) + zone).isoformat()}+05:30"

    return [{**row, **{key: local(row[key]) for key in TIMES}} for row in rows]


FORMS: dict[str, Callable[[Rows], Rows]] = {
    "another order": lambda rows: rows[::-1],
    "duplicates": lambda rows: [*rows, *rows],
    "milliseconds": in_milliseconds,
    "epochs in ms": lambda rows: epochs(rows, 1000),
    "another zone": elsewhere,
}


@pytest.mark.parametrize("form", FORMS)
def test_a_day_exported_again_has_the_same_rows(run: Run, store: Store, export: Path, form: str) -> None:
    rows = [call(number) for number in range(1, 6)]
    write(export, NAME, rows)
    first = table(store, run())
    write(export, NAME, FORMS[form](rows))
    assert table(store, run()) == first
    assert [row["latency_s"] for row in first] == [1.0] * 5
    marks = json.loads(first[0]["metadata"])
    assert (marks["release"], marks["tags"]) == ("v7", ["desk"])


def table(store: Store, governed: Any) -> Rows:
    rows = read(store, local_lake(store), governed.iteration.dataset).to_pylist()
    for row in rows:
        del row["source_file"]
        row["metadata"] = json.dumps(json.loads(row["metadata"]), sort_keys=True)
    return sorted(rows, key=lambda row: row["trace_id"])
