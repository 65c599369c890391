"""What is read again, what is not, and that nothing is lost or counted twice on the way."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.core.layout import SCORED_TRACES, WATERMARK
from pipeline.core.storage import Store
from pipeline.governance.erasure import tables
from pipeline.traces.lake import local_lake, open_lake
from pipeline.traces.materialize import read
from pipeline.traces.records import DayReport, GovernedTraces
from pipeline.traces.watermark import Watermark
from tests.variants import one_and_variants

from .conftest import Run, observation, score, write

pytestmark = pytest.mark.slow


def day_file(day: int) -> str:
    return f"observations_v2/2026-01-{day:02d}.jsonl.gz"


def at(day: int) -> str:
    return f"2026-01-{day:02d} 10:00:00.000000"


def ids(store: Store, governed: GovernedTraces) -> list[str]:
    return read(store, local_lake(store), governed.iteration.dataset, ["trace_id"])["trace_id"].to_pylist()


def watermark(store: Store) -> Watermark:
    result = store.read(WATERMARK, Watermark)
    assert result is not None
    return result


def test_a_file_that_did_not_change_is_not_read(run: Run, store: Store, export: Path) -> None:
    first = write(export, day_file(5), [observation(1)])
    write(export, day_file(6), [observation(2, start_time=at(6))])
    run()
    before = watermark(store).parts[day_file(5)]
    assert (before.days, before.bytes) == (("2026-01-05",), first.stat().st_size)
    stamp = first.stat().st_mtime_ns
    first.write_bytes(b"x" * first.stat().st_size)  # a reader would choke on it
    os.utime(first, ns=(stamp, stamp))
    write(export, day_file(7), [observation(3, start_time=at(7))])
    assert ids(store, run()) == ["t1", "t2", "t3"]
    os.utime(first, ns=(stamp + 10**9, stamp + 10**9))
    assert ids(store, run()) == ["t2", "t3"]


def test_scores_of_no_call_of_a_run_are_not_read(run: Run, store: Store, export: Path) -> None:
    write(export, day_file(5), [observation(1)])
    first = write(export, "scores/a.jsonl", [score(1, 1, 1.0)])
    write(export, "scores/b.jsonl", [score(2, 2, 0.0)])  # before its call
    write(export, "scores/c.jsonl", [score(3, 2, 1.0, trace_id=None)])
    run()
    stamp, whole = first.stat().st_mtime_ns, first.read_bytes()
    first.write_bytes(b"x" * len(whole))
    os.utime(first, ns=(stamp, stamp))
    write(export, day_file(6), [observation(2, start_time=at(6))])

    def means() -> list[float | None]:
        return read(store, local_lake(store), run().iteration.dataset, ["feedback_mean"])["feedback_mean"].to_pylist()

    assert means() == [1.0, 0.0] and len(list(store.path(SCORED_TRACES).iterdir())) == 3
    first.write_bytes(whole)
    os.utime(first, ns=(stamp, stamp))
    assert tables.sweep(store) == 1  # an erasure
    write(export, day_file(6), [observation(2, start_time=at(6)), observation(1, id="o3", start_time=at(7))])
    (export / "scores/c.jsonl").unlink()
    assert means() == [1.0, 0.0, 1.0] and len(list(store.path(SCORED_TRACES).iterdir())) == 2


def test_feedback_that_changes_reopens_its_days(run: Run, store: Store, export: Path) -> None:
    write(export, day_file(5), [observation(1)])
    write(export, day_file(6), [observation(2, start_time=at(6))])
    value = write(export, "scores/a.jsonl", [score(1, 1, 1.0)])

    def means() -> list[float | None]:
        return read(store, local_lake(store), run().iteration.dataset, ["feedback_mean"])["feedback_mean"].to_pylist()

    assert means() == [1.0, None]
    assert watermark(store).parts["scores/a.jsonl"].annotates == ("2026-01-05",)
    write(export, "scores/a.jsonl", [score(1, 2, 0.0)])
    assert means() == [None, 0.0]
    value.unlink()
    assert means() == [None, None]


KILLED = """
import sys, pathlib
sys.path.insert(0, sys.argv[1])
from pipeline.recipe import Compute
from pipeline.recipe.sources import ExportSource
from pipeline.recipe.traces import Traces
from pipeline.core.storage import ModelRef, Store
from pipeline.traces.materialize import materialize
from pipeline.traces.scope import Producer
from pipeline.traces.sources.protocol import Address
from tests.contexts import stage_context
import datetime
if __name__ == "__main__":
    source = ExportSource(kind="langfuse_export", uri=sys.argv[3])
    store = Store(sys.argv[2])
    context = stage_context(store, log=lambda line: print(line, flush=True), traces=Traces(source=source),
                            compute=Compute(workers=2))
    materialize(context, Address(source, sys.argv[3]),
                Producer(ModelRef(uri="/models/champion", digest="c" * 64), "tiny"), 0,
                datetime.datetime(2026, 1, 12, tzinfo=datetime.timezone.utc))
"""


@pytest.mark.parametrize(
    "after", one_and_variants(["read observations_v2/2026-01-06", "lists 4 parts", "2026-01-05 governed"])
)
def test_a_killed_run_is_made_good_by_the_next(
    run: Run, store: Store, export: Path, tmp_path: Path, after: str
) -> None:
    for day in range(5, 9):
        rows = [observation(n, start_time=at(day), id=f"{day}o{n}", trace_id=f"{day}t{n}") for n in range(300)]
        write(export, day_file(day), rows)
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    command = [sys.executable, str(script), str(Path(__file__).parents[3]), str(store.root), str(export)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    for line in process.stdout:
        if after in line:
            os.killpg(process.pid, signal.SIGKILL)
            break
    process.wait()
    assert process.returncode == -signal.SIGKILL
    governed = run()
    assert (governed.seen, governed.admitted, len(ids(store, governed))) == (1200, 1200, 1200)
    with open_lake(local_lake(store)) as lake:
        assert sorted(lake.digests()) == [f"2026-01-0{day}" for day in range(5, 9)]
    reports = [store.read(f"traces/days/2026-01-0{day}.json", DayReport) for day in range(5, 9)]
    assert [report.admitted for report in reports if report] == [300] * 4
    assert not list(store.path("traces", "staging").iterdir()), "what the killed run left is known by its lock"
