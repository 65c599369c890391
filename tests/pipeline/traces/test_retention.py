"""What is overdue goes from table and disk; what is not stays, and the stage goes on beside it."""

from pathlib import Path

import pytest

from pipeline.core import audit
from pipeline.core.storage import Store
from pipeline.recipe.sources import ExportSource
from pipeline.recipe.traces import Traces
from pipeline.traces.lake import local_lake, open_lake
from pipeline.traces.materialize import read
from pipeline.traces.retention import retain
from tests.contexts import KEYS, stage_context

from .conftest import NOW, Run, observation, write

pytestmark = pytest.mark.slow

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
