import json
from pathlib import Path

import pytest

from pipeline.core import audit
from pipeline.core.storage import DatasetRef, Store
from pipeline.recipe.sources import ExportSource
from pipeline.recipe.traces import Traces
from pipeline.traces import days as stage
from pipeline.traces.lake import local_lake, open_lake
from pipeline.traces.materialize import read
from pipeline.traces.materialize import read as read_dataset
from pipeline.traces.records import Reason
from pipeline.traces.retention import retain
from tests.contexts import KEYS, stage_context

from .conftest import NOW, Run, observation, score, write

pytestmark = pytest.mark.slow


FIRST, SECOND = "observations_v2/2026-01-05.jsonl.gz", "observations_v2/2026-01-06.jsonl.gz"
QUESTION = {"role": "user", "content": "What is 1 + 1?", "tool_calls": None, "tool_call_id": None, "name": None}
NEXT_DAY = "2026-01-06 10:00:00.000000"


def snapshots(store: Store) -> int:
    with open_lake(local_lake(store)) as lake:
        return len(lake._table.snapshots())


def ids(store: Store, dataset: DatasetRef) -> list[str]:
    return read_dataset(store, local_lake(store), dataset, ["trace_id"])["trace_id"].to_pylist()


def test_days_are_governed_and_read_back(run: Run, store: Store, export: Path) -> None:
    write(export, FIRST, [observation(1), observation(2, metadata={}), "{"])
    write(export, SECOND, [observation(3, start_time=NEXT_DAY)])
    write(export, "scores/2026-01-05.jsonl", [score(1, 1, 1.0), score(2, 1, 0.0), score(3, 1, 1.0, source="EVAL")])
    governed = run()
    assert (governed.seen, governed.admitted, governed.source) == (4, 2, str(export))
    assert governed.rejected == {Reason.MALFORMED: 1, Reason.CONSENT: 1}
    assert [d.day for d in governed.days] == ["2026-01-05", "2026-01-06"]
    rows = read_dataset(store, local_lake(store), governed.iteration.dataset).to_pylist()
    assert [r["trace_id"] for r in rows] == ["t1", "t3"]
    assert (rows[0]["feedback_mean"], rows[0]["feedback_count"], len(rows[0]["feedback"])) == (0.5, 2, 3)
    assert (rows[1]["feedback_mean"], rows[1]["feedback_count"]) == (None, 0)
    assert rows[0]["messages"] == [QUESTION]
    ledger = store.path("traces/rejected/2026-01-05.jsonl").read_text().splitlines()
    detail = json.loads(ledger[1])["detail"]
    assert [json.loads(line) for line in ledger] == [
        {"trace_id": "t2", "reason": "consent", "file": FIRST, "line": 2, "detail": "user_consent is absent"},
        {"trace_id": None, "reason": "malformed", "file": FIRST, "line": 3, "detail": detail},
    ]


def test_a_second_run_changes_nothing(run: Run, store: Store, export: Path) -> None:
    write(export, FIRST, [observation(1)])
    first = run()
    before = {p: p.stat().st_mtime_ns for p in store.root.rglob("*") if p.is_file()}
    assert run() == first
    assert {p: p.stat().st_mtime_ns for p in store.root.rglob("*") if p.is_file()} == before


def test_the_iteration_depends_on_content_and_not_on_the_store(run: Run, store: Store, export: Path) -> None:
    write(export, FIRST, [observation(1)])
    first = run()
    store.root.rename(store.root.with_name("elsewhere"))
    write(export, FIRST, [observation(1)])
    again = run()
    assert again.iteration.id == first.iteration.id
    assert again.iteration.dataset.snapshot != first.iteration.dataset.snapshot


def test_late_data_reopens_its_day_and_no_other(run: Run, store: Store, export: Path) -> None:
    write(export, FIRST, [observation(1)])
    write(export, SECOND, [observation(2, start_time=NEXT_DAY)])
    first, count = run(), snapshots(store)
    late = [observation(3), observation(1, updated_at=NEXT_DAY, level="ERROR")]
    write(export, "observations_v2/2026-01-07.jsonl.gz", late)
    second = run()
    assert second.iteration.id != first.iteration.id
    assert ids(store, second.iteration.dataset) == ["t3", "t2"]
    assert ids(store, first.iteration.dataset) == ["t1", "t2"]  # a recorded dataset stays what it was
    assert second.days[1] == first.days[1]
    assert snapshots(store) == count + 2  # one commit: the day's delete and its append
    assert [(d.day, d.seen) for d in second.days] == [("2026-01-05", 3), ("2026-01-06", 1), ("2026-01-07", 0)]


def test_a_source_without_a_single_admitted_trace_is_a_result(run: Run, store: Store, export: Path) -> None:
    write(export, "observations_v2/part-1.jsonl", [observation(1, metadata={}), "{"])
    write(export, "observations_v2/part-2.jsonl", [])
    governed = run(min_admitted_share=0.0)
    assert (governed.seen, governed.admitted) == (2, 0)
    assert {d.day: d.seen for d in governed.days} == {"2026-01-05": 1, "unknown": 1}
    assert [f.name for f in governed.days[1].files] == ["observations_v2/part-1.jsonl", "observations_v2/part-2.jsonl"]
    assert governed.iteration.dataset.rows == 0
    assert not store.path("traces", "datasets").exists()
    assert run(min_admitted_share=0.0) == governed


def test_a_day_that_left_the_source_left_the_dataset(run: Run, store: Store, export: Path) -> None:
    path = write(export, FIRST, [observation(1)])
    write(export, SECOND, [observation(2, start_time=NEXT_DAY)])
    run()
    path.unlink()
    assert ids(store, run().iteration.dataset) == ["t2"]


@pytest.mark.parametrize("broken", ["write_day", "write_atomically"])
@pytest.mark.parametrize("back", [False, True])
def test_crash_around_the_commit_is_made_good_by_the_next_run(
    run: Run, store: Store, export: Path, monkeypatch: pytest.MonkeyPatch, broken: str, back: bool
) -> None:
    write(export, FIRST, [observation(1)])
    first = run()
    write(export, FIRST, [observation(2)])

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(stage, broken, crash)  # write_atomically: the table holds t2, the report still speaks of t1
        run()
    if back:
        write(export, FIRST, [observation(1)])
    governed = run()
    assert ids(store, governed.iteration.dataset) == (["t1"] if back else ["t2"])
    assert (governed.iteration == first.iteration) is back and governed == run()


def test_a_dataset_that_is_not_there_says_so(run: Run, store: Store, export: Path) -> None:
    write(export, FIRST, [observation(1)])
    dataset = run().iteration.dataset
    with pytest.raises(ValueError, match=r"Materialise the traces again\.$"):
        read_dataset(store, local_lake(store), dataset.model_copy(update={"digest": "0" * 64}))
    with pytest.raises(ValueError, match=r"materialise the traces again\.$"):
        read_dataset(store, local_lake(store), dataset.model_copy(update={"rows": 5}))


def test_personal_data_reaches_no_file_of_the_store(run: Run, store: Store, export: Path) -> None:
    mail = "alice.zyx@example.com"
    rows = [
        observation(n, input=f"I am {mail}", user_id=mail, metadata={"user_consent": n != 2, "m": mail}) for n in (1, 2)
    ]
    write(export, FIRST, [*rows, json.dumps(rows[0])[:200]])
    governed = run()
    assert governed.admitted == 1
    (row,) = read_dataset(store, local_lake(store), governed.iteration.dataset).to_pylist()
    assert row["messages"][0]["content"] == "I am [EMAIL]"
    assert mail not in json.dumps(row, default=str)
    for path in store.root.rglob("*"):
        assert path.is_dir() or mail.encode() not in path.read_bytes()


def test_dataset_of_an_expired_snapshot_returns_the_same(run: Run, store: Store, export: Path) -> None:
    write(export, FIRST, [observation(1)])
    first = run().iteration
    write(export, SECOND, [observation(2, start_time=NEXT_DAY)])
    run()
    with open_lake(local_lake(store)) as lake:
        lake.expire(None)
    with pytest.raises(ValueError, match=r"no snapshot \d+ any more. Materialise the traces again\.$"):
        ids(store, first.dataset)
    (export / SECOND).unlink()
    again = run().iteration
    assert again.id == first.id
    assert ids(store, first.dataset) == ids(store, again.dataset) == ["t1"]


DAYS = ("2026-01-05", "2026-01-06", "2026-01-07")
FILES = tuple(f"observations_v2/{day}.jsonl.gz" for day in DAYS)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data", KEYS)


@pytest.fixture
def export(store: Store) -> Path:
    return store.path("raw")


def fill(export: Path) -> None:
    """A row a day that is admitted, and one without consent."""
    for n, (day, name) in enumerate(zip(DAYS, FILES, strict=True), start=1):
        other = {"id": f"x{n}", "start_time": f"{day} 11:00:00.000000", "metadata": {}}
        write(export, name, [observation(n, start_time=f"{day} 10:00:00.000000"), observation(9, **other)])


def drop(store: Store, export: Path, governed_days: int | None = None) -> list[str]:
    source = ExportSource(kind="langfuse_export", uri=str(export))
    return retain(stage_context(store, traces=Traces(source=source, governed_days=governed_days)), NOW)


def governed(store: Store) -> set[str]:
    with open_lake(local_lake(store)) as lake:
        return {str(day) for day in lake.read(DAYS, lake.snapshot, ["day"])["day"].to_pylist()}


def test_retention_drops_governed_days_and_keeps_their_account(run: Run, store: Store, export: Path) -> None:
    fill(export)
    whole = run()
    run(window_days=1)
    assert drop(store, export, governed_days=6) == ["2026-01-05"]
    assert governed(store) == set(DAYS[1:])
    with pytest.raises(ValueError, match="Materialise"):
        read(store, local_lake(store), whole.iteration.dataset)
    assert not store.path("traces/rejected/2026-01-05.jsonl").exists()
    assert store.path("traces/days/retired/2026-01-05.json").exists()
    (entry,) = [e for e in audit.entries(store) if e.kind == "retention"]
    assert (entry.subject, entry.detail["days"]) == ("governed before 2026-01-06", ["2026-01-05"])
    assert entry.detail["datasets"] == [whole.iteration.dataset.digest]


def test_the_stage_goes_on_and_does_not_bring_a_dropped_day_back(run: Run, store: Store, export: Path) -> None:
    fill(export)
    run()
    drop(store, export, governed_days=6)
    again = run(governed_days=6)
    assert again.admitted == 2
    assert governed(store) == set(DAYS[1:])
    assert read(store, local_lake(store), again.iteration.dataset).num_rows == 2


def test_nothing_is_overdue(run: Run, store: Store, export: Path) -> None:
    fill(export)
    run()
    before = {p: p.read_bytes() for p in store.root.rglob("*") if p.is_file()}
    assert drop(store, export) == drop(store, export, governed_days=7) == []
    assert {p: p.read_bytes() for p in store.root.rglob("*") if p.is_file()} == before
