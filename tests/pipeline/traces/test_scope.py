"""Which rows count for the champion: row by row, for everything that reads a dataset."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.core.iteration import Iteration
from pipeline.core.storage import Store, digest_json
from pipeline.rewards.label import label_traces
from pipeline.traces.lake import local_lake
from pipeline.traces.materialize import read
from pipeline.traces.records import GovernedTraces
from pipeline.traces.scope import Producer, consented
from tests.contexts import context_of

from .conftest import CHAMPION, Run, observation, score, write

pytestmark = pytest.mark.slow

FIRST, SECOND = "observations_v2/2026-01-05.jsonl.gz", "observations_v2/2026-01-06.jsonl.gz"
NEW, OLD = "tiny/2", "tiny/1"
NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
MORNING, EVENING = "2026-01-05 08:00:00.000000", "2026-01-05 18:00:00.000000"
NEXT_DAY = "2026-01-06 10:00:00.000000"


def ids(store: Store, governed: GovernedTraces) -> list[str]:
    return read(store, local_lake(store), governed.iteration.dataset, ["trace_id"])["trace_id"].to_pylist()


def plain(governed: GovernedTraces) -> str:
    """The digest of a dataset that holds all rows of the days."""
    return digest_json([[day.day, day.digest] for day in governed.days])


def mixed(export: Path) -> None:
    """One day on which two models served, each the same user and another one."""
    served = [(1, NEW, "ann"), (2, OLD, "ann"), (3, NEW, "bob"), (4, OLD, "cyd")]
    rows = [observation(n, provided_model_name=model, user_id=user) for n, model, user in served]
    write(export, FIRST, rows)
    write(export, "scores/a.jsonl", [score(n, n, 1.0) for n, _, _ in served])


def label(store: Store, iteration: Iteration) -> list[dict[str, Any]]:
    labels = label_traces(context_of(store, iteration), None, ())
    return pq.read_table(labels.dataset.uri).to_pylist()


def test_every_reader_of_a_dataset_sees_its_rows_alone(run: Run, store: Store, export: Path) -> None:
    mixed(export)
    governed = run(attribution="model", version=2)
    dataset, lake = governed.iteration.dataset, local_lake(store)
    assert (governed.admitted, dataset.rows) == (4, 2)
    assert ids(store, governed) == ["t1", "t3"]
    assert sorted(row["trace_id"] for row in label(store, governed.iteration)) == ["t1", "t3"]
    opinions = pq.read_table(store.path(governed.iteration.path("opinions", "2026-01-05.parquet")))
    assert opinions["trace_id"].to_pylist() == ["t1", "t3"]
    assert consented(store, lake, dataset) == {("t1", "o1"), ("t3", "o3")}


def test_the_digest_says_which_rows_count(run: Run, store: Store, export: Path) -> None:
    mixed(export)
    whole, new, old = run(), run(attribution="model", version=2), run(attribution="model", version=1)
    assert whole.iteration.dataset.digest == plain(whole)
    assert len({each.iteration.dataset.digest for each in (whole, new, old)}) == 3
    assert (ids(store, old), ids(store, new)) == (["t2", "t4"], ["t1", "t3"])
    assert run(attribution="model", version=2) == new
    write(export, "observations_v2/b.jsonl", [observation(5, provided_model_name=OLD, start_time=NEXT_DAY)])
    again = run(attribution="model", version=2)
    assert again.iteration == new.iteration, "another model's new rows are nothing new"


def test_rows_newer_than_the_promotion_count(run: Run, store: Store, export: Path) -> None:
    times = [MORNING, "2026-01-05 12:00:00.000000", "2026-01-05 12:00:00.000001", EVENING]
    write(export, FIRST, [observation(n, start_time=time) for n, time in enumerate(times, 1)])
    write(export, SECOND, [observation(9, start_time=NEXT_DAY)])
    assert ids(store, run(since=NOON, version=1)) == ["t3", "t4", "t9"]
    assert ids(store, run(since=NOON, version=1, attribution="none")) == ["t1", "t2", "t3", "t4", "t9"]
    assert ids(store, run(version=0)) == ["t1", "t2", "t3", "t4", "t9"]


def test_rows_of_a_canary_stay_out(run: Run, store: Store, export: Path) -> None:
    mixed(export)
    write(export, SECOND, [observation(n, provided_model_name=m, start_time=NEXT_DAY) for n, m in ((5, NEW), (6, OLD))])
    for rule in ({"attribution": "none"}, {"since": NOON - timedelta(days=1), "version": 1}):
        governed = run(kept_out=frozenset({NEW}), **rule)
        assert ids(store, governed) == ["t2", "t4", "t6"]
        assert sorted(row["trace_id"] for row in label(store, governed.iteration)) == ["t2", "t4", "t6"]
        assert run(**rule).iteration.dataset.digest != governed.iteration.dataset.digest
        assert run(kept_out=frozenset({"tiny/9"}), **rule) == run(**rule), "no row is a canary's"


def test_nothing_that_counts_publishes_nothing(run: Run, store: Store, export: Path) -> None:
    write(export, FIRST, [observation(1, start_time=MORNING)])
    run()
    published = sorted(store.path("traces", "datasets").rglob("*"))
    governed = run(since=NOON, version=1)
    assert (governed.admitted, governed.iteration.dataset.rows) == (1, 0)
    assert sorted(store.path("traces", "datasets").rglob("*")) == published


def test_the_window_is_of_days_with_rows_that_count(run: Run, store: Store, export: Path) -> None:
    write(export, FIRST, [observation(1, provided_model_name=NEW), observation(2, provided_model_name="tiny:2")])
    write(export, SECOND, [observation(3, provided_model_name=OLD, start_time=NEXT_DAY)])
    assert ids(store, run(kept_out=frozenset({OLD}), attribution="none", window_days=1)) == ["t1", "t2"]
    governed = run(attribution="model", version=2, window_days=1)
    assert ids(store, governed) == ["t1", "t2"]
    assert [day.day for day in governed.days] == ["2026-01-05"]
    two = run(attribution="model", version=2, window_days=2)
    assert two.iteration.dataset == governed.iteration.dataset


def test_a_champion_is_known_by_its_names() -> None:
    base, third = (Producer(CHAMPION, "tiny", version).names for version in (0, 3))
    assert base >= {"tiny", "tiny@cccccccccccc", "/models/champion"} and "tiny/1" not in base
    assert third >= {"tiny/3", "tiny:3", "tiny-v3", "models:/tiny/3", "champion-cccccccccccc"}
    assert not third & {"tiny", "tiny/2", "tiny/30"}
