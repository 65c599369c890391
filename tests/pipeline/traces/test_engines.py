"""The stage gives the same on every engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.core.storage import Store
from pipeline.recipe import Compute
from pipeline.traces.lake import local_lake
from pipeline.traces.materialize import read
from pipeline.traces.records import Reason

from .conftest import Run, observation, score, write


@pytest.mark.slow
@pytest.mark.parametrize("compute", ["local", "ray"], indirect=True)
def test_stage_gives_the_same_on_every_engine(compute: Compute, run: Run, store: Store, export: Path) -> None:
    for day in range(5, 9):
        rows = [
            observation(n, start_time=f"2026-01-{5 + n % 4:02d} 10:00:00.000000", metadata={"user_consent": n % 7 > 0})
            for n in range(40)
        ]
        copies = [{**row, "id": f"{day}{row['id']}", "trace_id": f"{day}{row['trace_id']}"} for row in rows[:3]]
        write(export, f"observations_v2/2026-01-{day:02d}.jsonl.gz", [*rows[day::3], *copies, "{"])
    write(export, "scores/a.jsonl", [score(n, n, 1.0) for n in range(40)])
    one = run()
    rows = read(store, local_lake(store), one.iteration.dataset)
    assert {Reason.DUPLICATE, Reason.SUPERSEDED, Reason.CONSENT, Reason.MALFORMED} == set(one.rejected)
    store.root.rename(store.root.with_name("one"))
    many = run(compute=compute)
    assert many.iteration.id == one.iteration.id
    assert many.days == one.days
    assert read(store, local_lake(store), many.iteration.dataset).equals(rows)
