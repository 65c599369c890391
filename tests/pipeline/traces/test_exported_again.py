"""A day that is exported anew in another form has the same rows."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.core.storage import Store
from pipeline.traces.lake import local_lake
from pipeline.traces.materialize import read
from tests.variants import one_and_variants

from .conftest import Run, observation, write

pytestmark = pytest.mark.slow

Rows = list[dict[str, Any]]
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


def as_lines(export: Path, rows: Rows) -> None:
    write(export, "observations_v2/2026-01-05.jsonl", rows)


def as_array(export: Path, rows: Rows) -> None:
    write(export, "observations_v2/2026-01-05.json", [json.dumps(rows, indent=1)])


def as_csv(export: Path, rows: Rows) -> None:
    path = write(export, "observations_v2/2026-01-05.csv", [])
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows({k: v if isinstance(v, str) else json.dumps(v) for k, v in row.items()} for row in rows)


def as_binary_parquet(export: Path, rows: Rows) -> None:
    path = write(export, "observations_v2/2026-01-05.parquet", [])
    texts = [{k: (v if isinstance(v, str) else json.dumps(v)).encode() for k, v in row.items()} for row in rows]
    pq.write_table(pa.Table.from_pylist(texts), path)


FORMS: dict[str, tuple[Callable[[Path, Rows], None], Callable[[Rows], Rows]]] = {
    "another order": (as_lines, lambda rows: rows[::-1]),
    "duplicates": (as_lines, lambda rows: [*rows, *rows]),
    "milliseconds": (as_lines, in_milliseconds),
    "epochs in ms": (as_lines, lambda rows: epochs(rows, 1000)),
    "epochs in ns": (as_lines, lambda rows: epochs(rows, 10**9)),
    "another zone": (as_lines, elsewhere),
    "an array": (as_array, lambda rows: rows),
    "csv": (as_csv, lambda rows: [*rows[::-1], rows[0]]),
    "binary parquet": (as_binary_parquet, lambda rows: rows),
}


@pytest.mark.parametrize("form", one_and_variants(FORMS, "epochs in ns", "csv", "binary parquet"))
def test_a_day_exported_again_has_the_same_rows(run: Run, store: Store, export: Path, form: str) -> None:
    rows = [call(number) for number in range(1, 6)]
    as_lines(export, rows)
    first = table(store, run())
    (export / "observations_v2/2026-01-05.jsonl").unlink()
    place, change = FORMS[form]
    place(export, change(rows))
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
