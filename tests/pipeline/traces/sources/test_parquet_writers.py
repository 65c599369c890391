"""Pages of Parquet files as several writers and settings lay them out: every row is read."""

import itertools
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.traces.sources.parquet import bounded

SCHEMA = pa.schema(
    [
        ("prompt", pa.string()),
        ("messages", pa.list_(pa.struct([("role", pa.string()), ("n", pa.int64())]))),
        ("never", pa.float64()),
        ("nothing", pa.null()),
        ("pairs", pa.map_(pa.string(), pa.string())),
    ]
)


def table(rows: int) -> pa.Table:
    columns = {
        "prompt": [None if n % 3 == 0 else f"prompt {n % 7} " * 20 for n in range(rows)],
        "messages": [[] if n % 2 else [{"role": "user", "n": n}] for n in range(rows)],
        "never": [None] * rows,
        "nothing": [None] * rows,
        "pairs": [[("a", str(n))] for n in range(rows)],
    }
    return pa.table(columns, schema=SCHEMA)


def rows_of(path: Path) -> int:
    with path.open("rb") as stream:
        return sum(piece.num_rows for piece, _ in bounded(stream))


@pytest.mark.parametrize("rows", [0, 1, 700])
def test_every_row_is_read_however_it_was_written(tmp_path: Path, rows: int) -> None:
    ways = itertools.product(("none", "zstd"), (True, False), (True, False), ("1.0", "2.0"), (None, 100))
    for compression, use_dictionary, index, version, group in ways:
        pq.write_table(
            table(rows), tmp_path / "a.parquet", group, compression=compression, use_dictionary=use_dictionary,
            write_page_index=index, data_page_version=version,
        )  # fmt: skip
        assert rows_of(tmp_path / "a.parquet") == rows, (compression, use_dictionary, index, version, group)


@pytest.mark.parametrize("rows", [0, 10_000])
def test_every_row_of_another_writer_is_read(tmp_path: Path, rows: int) -> None:
    query = f"select n, 'text ' || (n % 9) as text, [n, n] as list from range({rows}) t(n)"
    duckdb.sql(f"copy ({query}) to '{tmp_path / 'a.parquet'}' (format parquet, row_group_size 2048)")
    assert rows_of(tmp_path / "a.parquet") == rows
