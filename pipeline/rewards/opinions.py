"""What users think, settled once for a window, in a file for each of its days: the workers of a part read only theirs.

Owns `iterations/<id>/opinions/`. Refuses to weigh: `feedback` does.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.iteration import Iteration
from pipeline.recipe.rewards import Feedback
from pipeline.rewards import feedback
from pipeline.storage import Store
from pipeline.traces.arrow import pc
from pipeline.traces.lake import Lake
from pipeline.traces.records import Window
from pipeline.traces.scope import where


def settle(store: Store, iteration: Iteration, lake: Lake, window: Window, settings: Feedback) -> Path:
    """The folder of the window's opinions: `<day>.parquet` with the columns of `feedback.OPINIONS`."""
    folder = iteration.path("opinions")
    scratch = store.path("traces", "staging")  # what a kill leaves there is known to the erasure
    scratch.mkdir(parents=True, exist_ok=True)
    rows = where(window.scope)
    table = feedback.settle(lake.batches(window.days, window.snapshot, feedback.COLUMNS, rows), settings, scratch)
    with store.staged(folder) as staging:
        for day in window.days:
            asked = [batch["trace_id"] for batch in lake.batches([day], window.snapshot, ["trace_id"], rows)]
            of_day = pc.is_in(table["trace_id"], pa.chunked_array(asked, pa.string()).combine_chunks())
            pq.write_table(table.filter(of_day), staging / f"{day}.parquet")
    return store.path(folder)


def set_aside(folder: Path) -> dict[str, int]:
    """Rated traces whose feedback does not count, by reason."""
    reasons: Counter[str] = Counter()
    for path in sorted(folder.glob("*.parquet")):
        reasons.update(pq.read_table(path, columns=["reason"])["reason"].to_pylist())
    del reasons[""]
    return dict(sorted(reasons.items()))
