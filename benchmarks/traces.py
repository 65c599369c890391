"""What the traces stage costs beside other ways to the same table over one generated Langfuse export: `python -m
benchmarks.traces [--rows N] [--folder F] [--small]`. The last line is JSON: `floor_ratio` is the CPU of the bare
one-core floor over ours, `cpu_ratio_to_pandas` that of pandas over ours, `two_process_speedup` one process's wall-clock
time over two's."""

import json
import os
import shutil
import tempfile
from pathlib import Path

from benchmarks.measure import Took, measure
from benchmarks.parts import options
from benchmarks.traces_data import Truth, export_of, generate


def main() -> None:
    parser = options(__doc__, "20,000 rows and one pair, within a minute")
    parser.add_argument(
        "--rows", type=int, default=1_000_000, help="rows of the export; one three times as long follows"
    )
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir(), "traces-benchmark"))
    parser.add_argument("--pairs", type=int, default=3, help="runs of the floor and of ours, in turn")
    chosen = parser.parse_args()
    rows, pairs = (20_000, 1) if chosen.small else (chosen.rows, chosen.pairs)
    truth, truth_3x = generate(chosen.folder, rows), generate(chosen.folder, 3 * rows)
    print(f"{truth.rows:,} rows, {truth.json_bytes / 1e9:.2f} GB of JSON lines in {export_of(chosen.folder, rows)}")
    runs: dict[str, list[Took]] = {}
    for way in ("floor", "ours1", "ours2") * pairs + ("pandas",):
        runs.setdefault(way, []).append(run(way, chosen.folder, rows, truth))
    runs["ours1, 3x"] = [run("ours1", chosen.folder, 3 * rows, truth_3x)]
    middle = {way: sorted(took, key=lambda t: t.cpu_s)[len(took) // 2] for way, took in runs.items()}
    for way, took in middle.items():
        share = truth_3x.rows if way.endswith("3x") else truth.rows
        print(
            f"{way:<10} {took.cpu_s:7.1f} CPU s  {took.wall_s:7.1f} s  {took.peak_mb:7.0f} MB  "
            f"{share / took.wall_s:9,.0f} rows/s"
        )
    one, two = middle["ours1"], middle["ours2"]
    figures = {
        "floor_ratio": round(middle["floor"].cpu_s / one.cpu_s, 3),
        "cpu_ratio_to_pandas": round(middle["pandas"].cpu_s / one.cpu_s, 2),
        "peak_rss_mb": round(one.peak_mb),
        "peak_rss_mb_3x": round(middle["ours1, 3x"].peak_mb),
        "peak_rss_mb_two": round(two.peak_mb),
        "two_process_speedup": round(one.wall_s / two.wall_s, 2),
        "rows_per_s": round(truth.rows / one.wall_s),
        "rows": truth.rows,
    }
    print(json.dumps(figures))


def run(way: str, folder: Path, rows: int, truth: Truth) -> Took:
    """Run one way over the export, and stop if it ends with other counts than the generator's."""
    out = folder / f"out-{os.getpid()}"
    try:
        took = measure(["benchmarks.traces_rivals", way, str(export_of(folder, rows)), str(out)])
        _check(way, json.loads(took.said), truth, out)
    finally:
        shutil.rmtree(out, ignore_errors=True)
    print(f"  {way:<8} {took.cpu_s:7.1f} CPU s  {took.wall_s:7.1f} s  {took.peak_mb:7.0f} MB", flush=True)
    return took


def _check(way: str, found: dict[str, int], truth: Truth, out: Path) -> None:
    expected = {"admitted": truth.rows - truth.malformed if way == "floor" else truth.admitted}
    if way.startswith("ours"):
        expected = {name: count for name, count in truth._asdict().items() if name not in ("masked", "json_bytes")}
        expected["masked"], found["masked"] = truth.masked, _masked(out)
    if found != expected:
        raise RuntimeError(f"{way} found {found}, and the export holds {expected}. One of the two counts wrongly.")


def _masked(out: Path) -> int:
    """Rows of the table with a placeholder in them, where personal data was."""
    import duckdb

    text = "completion || list_aggregate([m.content for m in messages], 'string_agg', ' ')"
    files = f"read_parquet('{out}/lake/**/*.parquet', hive_partitioning=false)"
    query = f"SELECT count(*) FROM {files} WHERE regexp_matches({text}, '\\[[A-Z_]+\\]')"
    return int(duckdb.connect().execute(query).fetchall()[0][0])


if __name__ == "__main__":
    main()
