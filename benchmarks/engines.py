"""Engines for the traces stage, compared: `python -m benchmarks.engines [--rows N] [--folder F] [WAY ...]`.

Each way decodes the same export with our source and our gates, keeps the newest export of each observation and one row
of each content, and writes Parquet by day. What differs is who carries the rows and who compares them. Runs each way in
a process of its own, then again with one of its workers killed midway. Needs ray and daft; two workers everywhere.
"""

from __future__ import annotations

import argparse
import inspect
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.measure import measure
from benchmarks.traces_data import Truth, export_of, generate

WORKERS = 2
BUCKETS = 16
COMPARED = ["updated_at", "content_key", "id_bucket", "content_bucket"]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("ways", nargs="*", default=list(WAYS), metavar="WAY", help=", ".join(WAYS))
    options.add_argument("--rows", type=int, default=200_000)
    options.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir(), "traces-benchmark"))
    chosen = options.parse_args()
    truth = generate(chosen.folder, chosen.rows)
    export = export_of(chosen.folder, chosen.rows)
    for way in chosen.ways:
        lines = len(inspect.getsource(WAYS[way]).splitlines())
        run(way, export, chosen.folder / "out-engines", truth, f"{lines:3} lines")
        if way != "daft":  # its work is threads of one process: there is no worker to lose
            name = "spawn_main" if way == "fanout" else "ray::"
            run(way, export, chosen.folder / "out-engines", truth, "a worker killed", kill=name, after_s=2.0)


def run(way: str, export: Path, out: Path, truth: Truth, note: str, **killing: Any) -> None:
    shutil.rmtree(out, ignore_errors=True)
    try:
        took = measure(["benchmarks.engines", "--way", way, str(export), str(out)], **killing)
        same = json.loads(took.said) == truth.admitted
        found = f"{'same rows' if same else f'{took.said} rows, not {truth.admitted}'}; {note}"
        found += f" ({took.killed.split()[0] if took.killed else 'none was there'})" if killing else ""
        print(f"{way:<12} {took.cpu_s:6.1f} CPU s {took.wall_s:6.1f} s {took.peak_mb:6.0f} MB  {found}", flush=True)
    except RuntimeError as error:
        print(f"{way:<12} failed, {note}: {' '.join(str(error).split()[-60:])}", flush=True)
    finally:
        shutil.rmtree(out, ignore_errors=True)


def fanout(export: Path, out: Path) -> None:
    """The stage as it is, on processes: a task a file, DuckDB over the keys of each day, and the commit to the lake."""
    _stage(export, out, "local")


def fanout_ray(export: Path, out: Path) -> None:
    """The same tasks on Ray."""
    start_ray()
    _stage(export, out, "ray")


def ray_data(export: Path, out: Path) -> None:
    """Ray Data carries the rows, and its hash shuffle brings those together that are compared."""
    import ray

    start_ray()
    files = [{"export": str(export), "place": n} for n in range(_parts(export))]
    rows = ray.data.from_items(files, override_num_blocks=len(files))
    rows = rows.map_batches(_governed_block, batch_size=1, batch_format="pyarrow")
    rows = rows.groupby("id_bucket", num_partitions=BUCKETS).map_groups(newest, batch_format="pyarrow")
    rows = rows.groupby("content_bucket", num_partitions=BUCKETS).map_groups(singles, batch_format="pyarrow")
    rows.drop_columns(COMPARED).write_parquet(str(out), partition_cols=["day"])


def daft(export: Path, out: Path) -> None:
    """Daft on threads of one process; rows from a generator cost it a Python object a cell, so files are staged."""
    import daft as df  # pyright: ignore[reportMissingImports]

    def staged(place: int) -> str:
        import pyarrow.parquet as pq

        path = out / "staged" / f"{place}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        tables = governed(export, place)
        first = next(tables)
        with pq.ParquetWriter(path, first.schema, compression="zstd", compression_level=1) as writer:
            writer.write_table(first)
            for table in tables:
                writer.write_table(table)
        return str(path)

    stage = df.func(staged, return_dtype=df.DataType.string(), use_process=True)
    places = df.from_pydict({"place": list(range(_parts(export)))}).into_partitions(_parts(export))
    paths = places.select(stage(df.col("place")).alias("path")).to_pydict()["path"]
    rows = df.read_parquet(paths)  # row_number over a window takes minutes where groups are this many
    exports = rows.groupby("observation_id").agg(df.col("updated_at").max())
    rows = rows.join(exports, on=["observation_id", "updated_at"], how="semi")
    contents = rows.groupby("user_id", "timestamp", "content_key").agg(df.col("observation_id").min())
    rows = rows.join(contents, on="observation_id", how="semi")
    rows.exclude(*COMPARED).write_parquet(str(out / "table"), partition_cols=[df.col("day")])
    shutil.rmtree(out / "staged")


def daft_ray(export: Path, out: Path) -> None:
    """The same query on Daft's Ray runner."""
    import daft as df  # pyright: ignore[reportMissingImports]

    start_ray()
    df.set_runner_ray()
    daft(export, out)


WAYS: dict[str, Callable[[Path, Path], None]] = {
    way.__name__: way for way in (fanout, fanout_ray, ray_data, daft, daft_ray)
}


def governed(export: Path, place: int) -> Iterator[Any]:
    """Tables of the rows of one file that pass the gates, with what they are compared by."""
    import hashlib

    import pyarrow as pa

    from pipeline.recipe.traces import LangfuseExportSource, Traces
    from pipeline.traces.batch import BatchBuilder
    from pipeline.traces.gates import GateRules, check
    from pipeline.traces.rows import SCHEMA
    from pipeline.traces.sources.open import open_source
    from pipeline.traces.sources.protocol import Address

    section = LangfuseExportSource(uri=str(export))
    settings = Traces(source=section)
    source = open_source(Address(section, str(export)))
    part = source.parts()[place]
    batcher, rules = BatchBuilder(settings, part.name), GateRules(settings, datetime(2026, 8, 1, tzinfo=UTC), {})
    for block in source.rows(part, hashlib.sha256()):
        checked, reasons = check(batcher.batch(block.traces)[0], rules)
        passed = checked.filter(pa.array([reason is None for reason in reasons]))
        table = pa.Table.from_batches([passed]).select([*SCHEMA.names, "updated_at", "content_key"])
        yield bucketed(table)


def bucketed(rows: Any) -> Any:
    """The rows with the buckets that a hash shuffle groups them by."""
    import pyarrow as pa

    hash_array = import_module("pandas.util").hash_array
    for bucket, column in (("id_bucket", "observation_id"), ("content_bucket", "content_key")):
        hashed = hash_array(rows[column].to_numpy(zero_copy_only=False)) % BUCKETS
        rows = rows.append_column(bucket, pa.array(hashed))
    return rows


def _governed_block(files: Any) -> Iterator[Any]:
    for file in files.to_pylist():
        yield from governed(Path(file["export"]), file["place"])


def newest(rows: Any) -> Any:
    """The newest export of each observation."""
    return _first(rows.sort_by([("observation_id", "ascending"), ("updated_at", "descending")]), ["observation_id"])


def singles(rows: Any) -> Any:
    """One row of each content."""
    keys = ["user_id", "timestamp", "content_key"]
    return _first(rows.sort_by([(key, "ascending") for key in [*keys, "trace_id"]]), keys)


def _first(rows: Any, keys: list[str]) -> Any:
    """The first row of each key, of rows that are sorted by it."""
    import pandas as pd

    repeated = rows.select(keys).to_pandas().duplicated()
    return rows.filter(pd.Series(~repeated).to_numpy())


def start_ray() -> None:
    import os

    import ray

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(num_cpus=WORKERS, include_dashboard=False, object_store_memory=2 << 30, log_to_driver=False)


def _stage(export: Path, out: Path, where: Any) -> None:
    from benchmarks.traces_rivals import materialized

    materialized(export, out, WORKERS, where)


def _parts(export: Path) -> int:
    return len(list((export / "observations_v2").iterdir()))


def _rows(out: Path) -> int:
    import duckdb

    files = f"read_parquet('{out}/**/*.parquet', hive_partitioning=false)"
    return int(duckdb.connect().execute(f"SELECT count(*) FROM {files}").fetchall()[0][0])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--way"]:
        WAYS[sys.argv[2]](Path(sys.argv[3]), Path(sys.argv[4]))
        print(_rows(Path(sys.argv[4])))
    else:
        main()
