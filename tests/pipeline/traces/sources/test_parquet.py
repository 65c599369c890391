import hashlib
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.core.storage import digest_file
from pipeline.traces.sources.langfuse_export import LangfuseExport

from .conftest import all_of, observation, read, reasons, write


def source(export: Path) -> LangfuseExport:
    return LangfuseExport(str(export))


def parquet(path: Path, rows: list[dict[str, Any]], **columns: pa.DataType) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(rows)
    for name, kind in columns.items():
        at = table.column_names.index(name)
        table = table.set_column(at, name, pa.array([row[name] for row in rows], kind))
    pq.write_table(table, path)
    return path


@pytest.mark.parametrize("unit", ["us", "ns"])
def test_parquet_gives_the_rows_that_json_gives(export: Path, tmp_path: Path, unit: str) -> None:
    rows = [observation(n, usage_details={"input": 7, "output": 3}, unread=n) for n in range(1, 5)]
    write(export, "observations_v2/a.jsonl", rows)
    times = {k: [datetime.fromisoformat(row[k]) for row in rows] for k in ("start_time", "updated_at")}
    typed = [{**row, **{k: v[n] for k, v in times.items()}} for n, row in enumerate(rows)]
    maps = [{**row, "metadata": list(row["metadata"].items())} for row in typed]
    path = parquet(
        tmp_path / "p/observations_v2/a.parquet",
        maps,
        start_time=pa.timestamp(unit),
        updated_at=pa.timestamp(unit, "UTC"),
        metadata=pa.map_(pa.string(), pa.string()),
    )
    digest = hashlib.sha256()
    (part,) = source(tmp_path / "p").parts()
    result = all_of(source(tmp_path / "p").rows(part, digest))
    wanted = read(source(export))
    for trace in [*result.traces, *wanted.traces]:
        trace.metadata = json.loads(trace.metadata)
    assert (result.traces, result.rejected) == (wanted.traces, [])
    assert digest.hexdigest() == digest_file(path)


def test_parquet_with_other_columns_is_counted_row_by_row(export: Path) -> None:
    parquet(export / "observations_v2/a.parquet", [{"name": "x"}, {"name": "y"}])
    parquet(export / "observations_v2/b.parquet", [observation(1), observation(2, id=None)])
    rows = read(source(export))
    assert reasons(rows) == ["schema:1:None", "schema:2:None", "schema:2:None"]
    assert "missing required field `id`" in rows.rejected[0].detail
    assert [t.trace_id for t in rows.traces] == ["t1"]


def test_damaged_parquet_is_a_truncated_file(export: Path) -> None:
    path = parquet(export / "observations_v2/a.parquet", [observation(1)])
    path.write_bytes(path.read_bytes()[:-20])
    write(export, "observations_v2/b.parquet", ["PAR1"])
    assert reasons(read(source(export))) == ["truncated_file:1:None"] * 2


def test_parquet_text_that_is_no_text_is_one_counted_row(export: Path) -> None:
    rows = [observation(n) for n in (1, 2, 3)]
    table = pa.Table.from_pylist(rows)
    bad = pa.array([b"a", b"\xff", b"c"], pa.binary()).view(pa.string())
    table = table.set_column(table.column_names.index("output"), "output", bad)
    (export / "observations_v2").mkdir(parents=True)
    pq.write_table(table, export / "observations_v2/a.parquet")
    result = read(source(export))
    assert ([t.line for t in result.traces], reasons(result)) == ([1, 3], ["malformed:2:None"])


def test_strings_may_be_binary(export: Path, tmp_path: Path) -> None:
    texts = {"id": "o", "trace_id": "t", "type": "GENERATION", "start_time": "2026-01-05 10:00:00", "input": "\u00e9"}
    rows = [{**texts, "output": "Yes"}, {**texts, "id": "p", "output": None}]
    write(export, "observations_v2/a.jsonl", rows)
    binary = [{k: v.encode() if v else None for k, v in row.items()} for row in rows]
    parquet(tmp_path / "p/observations_v2/a.parquet", binary, id=pa.large_binary(), output=pa.binary())
    assert read(source(tmp_path / "p")) == read(source(export))
