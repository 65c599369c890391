"""The comparison of rows alone, at sizes that decide: `python -m benchmarks.keys [--rows N] [WAY ...]`.

A day's keys (about 120 B a row, a tenth of them repetitions) through the judge's SQL in DuckDB on one core within a
memory limit, and through the shuffles of Ray Data and Daft. Needs ray and daft for those two.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.engines import BUCKETS, bucketed, newest, singles, start_ray
from benchmarks.measure import measure

FILES = 8


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("ways", nargs="*", default=list(WAYS), metavar="WAY", help=", ".join(WAYS))
    options.add_argument("--rows", type=int, default=5_000_000)
    options.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir(), "traces-benchmark"))
    chosen = options.parse_args()
    folder = chosen.folder / f"keys-{chosen.rows}"
    generate(folder, chosen.rows)
    stored = sum(file.stat().st_size for file in folder.glob("*.parquet"))
    print(f"{chosen.rows:,} keys, {stored / chosen.rows:.0f} B each in Parquet")
    for way in chosen.ways:
        try:
            took = measure(["benchmarks.keys", "--way", way, str(folder)])
        except RuntimeError as error:
            print(f"{way:<10} failed: {' '.join(str(error).split()[-60:])}", flush=True)
            continue
        said = json.loads(took.said)
        assert said.pop("kept") == chosen.rows - chosen.rows // 20 * 2, took.said
        rate = chosen.rows / took.cpu_s
        print(
            f"{way:<10} {took.cpu_s:6.1f} CPU s {took.wall_s:6.1f} s {took.peak_mb:6.0f} MB {rate:9,.0f} rows per CPU s"
            f"  {said or ''}",
            flush=True,
        )


def generate(folder: Path, rows: int) -> None:
    """Keys as the map leaves them: of 20 rows one is exported again and one copied under another id."""
    import duckdb

    if (folder / f"{FILES - 1}.parquet").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    db = duckdb.connect()
    for part in range(FILES):
        db.execute(
            f"""COPY (
                SELECT {part}::INT AS part, i AS row, i AS line, md5('t' || id) AS trace_id, md5('o' || id) AS
                    observation_id, 'user-' || (said * 7919 % 1000003) AS user_id,
                    TIMESTAMPTZ '2026-07-01 00:00:00Z' + to_microseconds((said * 1000)::BIGINT) AS timestamp,
                    TIMESTAMPTZ '2026-07-02 00:00:00Z' + to_microseconds(i::BIGINT) AS updated_at,
                    unhex(md5('c' || said)) AS content_key, NULL::VARCHAR AS reason, NULL::VARCHAR AS detail,
                    NULL::VARCHAR AS erased, NULL::UBIGINT[] AS bands
                FROM (SELECT i, i - (i % 20 = 19)::INT AS id, i - (i % 20 IN (9, 19))::INT AS said
                    FROM range({rows}) t(i) WHERE hash(i) % {FILES} = {part})
            ) TO '{folder}/{part}.parquet' (FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1)"""
        )


def duckdb(folder: Path) -> dict[str, object]:
    """The judge as it is: verdicts, the list of admitted rows and the ledger, in `judge`'s own memory limit."""
    from pipeline.traces.database import MEMORY_MB
    from pipeline.traces.deduplicate import DayInput, deduplicate

    files = tuple(sorted(folder.glob("*.parquet")))
    with tempfile.TemporaryDirectory(dir=folder) as work:
        spilled = [0]
        threading.Thread(target=_watch, args=(Path(work), spilled), daemon=True).start()
        judged = deduplicate(DayInput("2026-07-01", files, {n: f.name for n, f in enumerate(files)}, Path(work, "day")))
    kept = sum(counts[None] for counts in judged.counts.values())
    return {"kept": kept, "spilled_mb": spilled[0] >> 20, "limit_mb": MEMORY_MB}


def ray_data(folder: Path) -> dict[str, object]:
    """Two hash shuffles of Ray Data."""
    import ray

    start_ray()
    keys = ray.data.read_parquet(str(folder)).map_batches(bucketed, batch_format="pyarrow")
    keys = keys.groupby("id_bucket", num_partitions=BUCKETS).map_groups(newest, batch_format="pyarrow")
    keys = keys.groupby("content_bucket", num_partitions=BUCKETS).map_groups(singles, batch_format="pyarrow")
    return {"kept": keys.count()}


def daft(folder: Path) -> dict[str, object]:
    """Two groupings of Daft on threads of one process."""
    import daft as df  # pyright: ignore[reportMissingImports]

    kept = [df.col(name).any_value() for name in ("user_id", "timestamp", "content_key", "trace_id")]
    keys = df.read_parquet(f"{folder}/*.parquet").groupby("observation_id").agg(df.col("updated_at").max(), *kept)
    keys = keys.groupby("user_id", "timestamp", "content_key").agg(df.col("observation_id").min())
    return {"kept": len(keys.to_arrow())}  # count_rows() is wrong here: Daft 0.7.26 finds some thousands


WAYS: dict[str, Callable[[Path], dict[str, object]]] = {way.__name__: way for way in (duckdb, ray_data, daft)}


def _watch(folder: Path, most: list[int]) -> None:
    while folder.exists():
        most[0] = max(most[0], sum(_size(file) for file in folder.rglob("*")))
        time.sleep(0.1)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--way"]:
        print(json.dumps(WAYS[sys.argv[2]](Path(sys.argv[3]))))
    else:
        main()
