"""Ways to the same table, each in a process of its own: `python -m benchmarks.traces_rivals WAY EXPORT OUT`. Every way
but the floor keeps the truth's `admitted`; none but ours looks for personal data or counts reasons. The last line is
JSON."""

import io
import json
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Any

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


def _whole_lines(stream: Iterable[Any]) -> io.BytesIO:
    """A file without its broken lines, at which read_json would stop."""
    return io.BytesIO(b"".join(line for line in stream if line.endswith(b"}\n")))


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


def materialized(export: Path, out: Path, workers: int) -> dict[str, int]:
    """The stage with all its gates, from the export to the commit, the ledger and the reports."""
    from benchmarks.contexts import stage_context
    from pipeline.core.storage import ModelRef, Store
    from pipeline.recipe import Compute
    from pipeline.recipe.sources import ExportSource
    from pipeline.recipe.traces import Traces
    from pipeline.traces.materialize import materialize
    from pipeline.traces.scope import Producer
    from pipeline.traces.sources.protocol import Address

    store, source = Store(out), ExportSource(kind="langfuse_export", uri=str(export))
    made = materialize(
        stage_context(
            store,
            log=lambda line: print(line, file=sys.stderr),
            traces=Traces(source=source, regions_allowed=("us", "kr")),
            compute=Compute(workers=workers),
        ),
        Address(source, str(export)),
        Producer(ModelRef(uri="/models/champion", digest="0" * 64), "benchmark"),
        0,
        datetime(2026, 8, 1, tzinfo=UTC),
    )
    return {"rows": made.seen, "admitted": made.admitted, **made.rejected}


RIVALS: dict[str, Callable[[list[Path], Path], int]] = {"floor": floor, "pandas": pandas}


def main() -> None:
    way, export, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    if way.startswith("ours"):
        print(json.dumps(materialized(export, out, int(way[4:]))))
    else:
        print(json.dumps({"admitted": RIVALS[way](sorted((export / "observations_v2").glob("*.gz")), out)}))


if __name__ == "__main__":
    main()
