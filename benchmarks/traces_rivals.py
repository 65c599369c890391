"""Ways to the same table, each in a process of its own: `python -m benchmarks.traces_rivals WAY EXPORT OUT`. Every way
but the floor keeps the truth's `admitted`; none but ours looks for personal data or counts reasons. The last line is
JSON."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

TEXTS = [
    *("id", "trace_id", "start_time", "updated_at", "user_id", "session_id", "provided_model_name"),
    *("level", "status_message", "input", "output"),
]
NESTED = ["metadata", "usage_details"]
COLUMNS = [*TEXTS, *NESTED, "latency"]


def pandas(files: list[Path], out: Path) -> int:
    """read_json of each file as it comes, concat, filter, drop_duplicates, to_parquet by day."""
    import gzip

    import pandas as pd

    frames: list[Any] = []
    for file in files:
        with gzip.open(file) as stream:
            frames.append(pd.read_json(_whole_lines(stream), lines=True)[COLUMNS])
    rows: Any = pd.concat(frames, ignore_index=True)
    said = rows["metadata"].map(lambda m: m.get("user_consent") == "true" and m.get("region") != "eu")
    rows = rows[said & (rows["level"] != "ERROR")]
    rows = rows.sort_values("updated_at").drop_duplicates("id", keep="last")
    rows = rows.drop_duplicates(["user_id", "start_time", "input", "output"])
    rows.assign(day=rows["start_time"].astype(str).str[:10]).to_parquet(out, partition_cols=["day"])
    return len(rows)


def polars(files: list[Path], out: Path) -> int:
    """read_ndjson of each file, then one lazy query with `unique`."""
    import polars as pl
    from isal import igzip

    kept: dict[str, Any] = dict.fromkeys(TEXTS, pl.String) | {"latency": pl.Float64}
    kept["metadata"] = pl.Struct(dict.fromkeys(("user_consent", "region", "release", "channel", "attempt"), pl.String))
    kept["usage_details"] = pl.Struct(dict.fromkeys(("input", "output", "total"), pl.Int64))
    said = pl.col("metadata").struct
    frames: list[pl.DataFrame] = []
    for file in files:
        with igzip.open(file) as stream:
            frames.append(pl.read_ndjson(_whole_lines(stream), schema=kept))
    rows = (
        pl.concat(frames)
        .lazy()
        .filter((said.field("user_consent") == "true") & (said.field("region") != "eu") & (pl.col("level") != "ERROR"))
        .sort("updated_at", descending=True)
        .unique("id", keep="first")
        .unique(["user_id", "start_time", "input", "output"], keep="any")
        .with_columns(day=pl.col("start_time").str.slice(0, 10))
        .collect()
    )
    rows.lazy().sink_parquet(pl.PartitionBy(out, key="day"), compression="zstd", compression_level=1, mkdir=True)
    return rows.height


def _whole_lines(stream: Iterable[Any]) -> io.BytesIO:
    """A file without its broken lines, at which read_json and read_ndjson would stop."""
    return io.BytesIO(b"".join(line for line in stream if line.endswith(b"}\n")))


def duckdb(files: list[Path], out: Path) -> int:
    """read_json with declared columns, DISTINCT ON twice, COPY by day; malformed lines vanish uncounted."""
    import duckdb as db

    columns = dict.fromkeys(COLUMNS, "VARCHAR") | {"metadata": "MAP(VARCHAR, VARCHAR)", "latency": "DOUBLE"}
    columns |= {"start_time": "TIMESTAMP", "updated_at": "TIMESTAMP", "usage_details": "MAP(VARCHAR, BIGINT)"}
    source = f"read_json({[str(f) for f in files]}, format='newline_delimited', ignore_errors=true, columns={columns})"
    connection = db.connect()
    connection.execute(
        f"""COPY (
            SELECT DISTINCT ON (user_id, start_time, input, output) *, start_time::DATE AS day FROM (
                SELECT DISTINCT ON (id) * FROM {source}
                WHERE metadata['user_consent'] = 'true' AND metadata['region'] <> 'eu' AND level <> 'ERROR'
                ORDER BY id, updated_at DESC)
        ) TO '{out}' (FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1, PARTITION_BY (day))"""
    )
    found = connection.execute(f"SELECT count(*) FROM read_parquet('{out}/*/*.parquet')").fetchone()
    assert found is not None
    return int(found[0])


def floor(files: list[Path], out: Path) -> int:
    """What no way on one core escapes: gunzip, typed decode, the same bytes as zstd-1 Parquet. It drops nothing."""
    import msgspec
    import pyarrow as pa
    import pyarrow.parquet as pq
    from isal import igzip

    pa.set_cpu_count(1)
    kinds = [*((name, str | None) for name in TEXTS), *((name, msgspec.Raw) for name in NESTED)]
    decode = msgspec.json.Decoder(msgspec.defstruct("Row", [*kinds, ("latency", float | None)], gc=False)).decode
    schema = pa.schema([*((name, pa.string()) for name in COLUMNS[:-1]), ("latency", pa.float64())])
    out.mkdir()
    count = 0
    with pq.ParquetWriter(out / "rows.parquet", schema, compression="zstd", compression_level=1) as writer:
        for file in files:
            with igzip.open(file) as stream:
                while lines := stream.readlines(8 << 20):
                    rows: list[Any] = []
                    for line in lines:
                        with suppress(msgspec.DecodeError):
                            rows.append(decode(line))
                    values = [list(map(attrgetter(name), rows)) for name in COLUMNS]
                    texts = [pa.array(column, pa.string()) for column in values[: len(TEXTS)]]
                    nested = [pa.array(map(bytes, c), pa.binary()).cast(pa.string()) for c in values[len(TEXTS) : -1]]
                    arrays = [*texts, *nested, pa.array(values[-1], pa.float64())]
                    writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
                    count += len(rows)
    return count


def materialized(
    export: Path,
    out: Path,
    workers: int,
    where: Literal["local", "ray"] = "local",
) -> dict[str, int]:
    """The stage with all its gates, from the export to the commit, the ledger and the reports."""
    from benchmarks.contexts import stage_context
    from pipeline.core.storage import ModelRef, Store
    from pipeline.recipe import Compute
    from pipeline.recipe.traces import ExportSource, Traces
    from pipeline.traces.materialize import materialize
    from pipeline.traces.scope import Producer
    from pipeline.traces.sources.protocol import Address

    store, source = Store(out), ExportSource(kind="langfuse_export", uri=str(export))
    made = materialize(
        stage_context(
            store,
            log=lambda line: print(line, file=sys.stderr),
            traces=Traces(source=source, regions_allowed=("us", "kr")),
            compute=Compute(data=where, workers=workers),
        ),
        Address(source, str(export)),
        Producer(ModelRef(uri="/models/champion", digest="0" * 64), "benchmark"),
        0,
        datetime(2026, 8, 1, tzinfo=UTC),
    )
    return {"rows": made.seen, "admitted": made.admitted, **made.rejected}


RIVALS: dict[str, Callable[[list[Path], Path], int]] = {w.__name__: w for w in (floor, pandas, polars, duckdb)}


def main() -> None:
    way, export, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    if way.startswith("ours"):
        print(json.dumps(materialized(export, out, int(way[4:]))))
    else:
        print(json.dumps({"admitted": RIVALS[way](sorted((export / "observations_v2").glob("*.gz")), out)}))


if __name__ == "__main__":
    main()
