from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pipeline.storage import Store
from pipeline.traces.lake import Lake, open_lake
from pipeline.traces.records import Trace, table_of


def trace(number: int, day: str = "2026-01-05", model: str = "m", completion: str = "Yes") -> Trace:
    return Trace(
        trace_id=f"t{number}",
        observation_id=f"o{number}",
        timestamp=datetime.fromisoformat(day).replace(tzinfo=UTC),
        day=day,
        model=model,
        user_id=None,
        session_id=None,
        messages=[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "", "tool_calls": "[]"}],
        completion=completion,
        file="f",
        line=number,
        consent=True,
        metadata={"k": ["v", 1]},
    )


def ids(lake: Lake, *days: str, snapshot: str | None = None) -> list[str]:
    return lake.read(days, snapshot or lake.snapshot, ["trace_id"])["trace_id"].to_pylist()


def test_a_day_is_replaced_and_its_neighbours_stay(store: Store) -> None:
    with open_lake(store) as lake:
        assert (lake.snapshot, lake.digests()) == ("", {})
        lake.replace_day("2026-01-05", table_of([trace(1), trace(2)]), "a")
        lake.replace_day("2026-01-06", table_of([trace(3, "2026-01-06")]), "b")
        before = lake.snapshot
        lake.replace_day("2026-01-05", table_of([trace(4)]), "c")
        assert ids(lake, "2026-01-05", "2026-01-06") == ["t4", "t3"]
        assert ids(lake, "2026-01-05", "2026-01-06", snapshot=before) == ["t1", "t2", "t3"]
        assert lake.digests() == {"2026-01-05": "c", "2026-01-06": "b"}
    with open_lake(store) as again:
        assert ids(again, "2026-01-05") == ["t4"]
        again.replace_day("2026-01-05", table_of([]), "d")
        assert ids(again, "2026-01-05") == []
        again.replace_day("2026-01-05", table_of([]), "e")
        assert again.digests()["2026-01-05"] == "e"


def test_rows_come_back_as_they_went_in_whatever_the_model_is_called(store: Store) -> None:
    models = ["org/model:v1.0", "a b=c%2F&d?e#f", "../../up", "ü\n'\"", "None", " "]
    rows = table_of([trace(n, model=model) for n, model in enumerate(models)])
    with open_lake(store) as lake:
        lake.replace_day("2026-01-05", rows, "a")
        assert lake.read(["2026-01-05"], lake.snapshot).equals(rows)
        lake.replace_day("2026-01-05", rows.slice(0, 1), "b")
        assert ids(lake, "2026-01-05") == ["t0"]
    outside = set(store.root.parent.rglob("*.parquet")) - set(store.path("lake").rglob("*.parquet"))
    assert not outside


def test_the_digest_of_the_source_is_on_the_snapshot(store: Store) -> None:
    with open_lake(store) as lake:
        lake.replace_day("2026-01-05", table_of([trace(1)]), "a")
        lake.replace_day("2026-01-05", table_of([trace(2)]), "b")
        summaries = [s.summary for s in lake._table.snapshots()]
        assert [(s["traces.day"], s["traces.digest"]) for s in summaries if s] == [
            ("2026-01-05", d) for d in ("a", "b", "b")
        ]


def test_an_unknown_column_is_named(store: Store) -> None:
    with open_lake(store) as lake, pytest.raises(ValueError, match=r"no column answer.*Choose from"):
        lake.read(["2026-01-05"], lake.snapshot, ["answer"])


FULL_DISK = """
import resource, signal, sys
sys.path.insert(0, sys.argv[2])
import test_lake
from pipeline.storage import Store
from pipeline.traces.lake import open_lake
from pipeline.traces.records import table_of
import os
with open_lake(Store(sys.argv[1])) as lake:
    rows = table_of([test_lake.trace(9, completion=os.urandom(1_000_000).hex())])
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
    try:
        lake.replace_day("2026-01-05", rows, "b")
    except OSError as error:
        print("refused", error)
"""


def test_a_write_that_fails_half_way_leaves_the_day_as_it_was(store: Store) -> None:
    with open_lake(store) as lake:
        lake.replace_day("2026-01-05", table_of([trace(1)]), "a")
    command = [sys.executable, "-c", FULL_DISK, str(store.root), str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("refused"), done.stderr
    with open_lake(store) as lake:
        assert ids(lake, "2026-01-05") == ["t1"]
        assert lake.digests() == {"2026-01-05": "a"}
        lake.replace_day("2026-01-05", table_of([trace(2)]), "b")
        assert ids(lake, "2026-01-05") == ["t2"]
