"""A pass of retention over a data root, and what it leaves: for kills at each of its writes."""

from collections import Counter
from pathlib import Path
from typing import Any

from pipeline.core import audit
from pipeline.core.storage import Store
from pipeline.recipe.sources import ExportSource
from pipeline.recipe.traces import Traces
from pipeline.traces.lake import local_lake, open_lake
from pipeline.traces.retention import retain, windows
from tests.contexts import KEYS, stage_context
from tests.pipeline.traces.conftest import NOW
from tests.pipeline.traces.lake.upkeep_work import WRITES as WRITES

DAYS = ("2026-01-05", "2026-01-06", "2026-01-07")


def work(root: Path) -> None:
    store = Store(root, KEYS)
    source = ExportSource(kind="langfuse_export", uri=str(store.path("raw")))
    retain(stage_context(store, traces=Traces(source=source, governed_days=6)), NOW)


def state(root: Path) -> dict[str, Any]:
    store = Store(root, KEYS)
    with open_lake(local_lake(store)) as lake:
        rows = Counter(map(str, lake.read(DAYS, lake.snapshot, ["day"])["day"].to_pylist()))
        digests = lake.digests()
    logged = [entry for entry in audit.entries(store) if entry.kind == "retention"]
    names = [path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()]
    return {
        "rows": rows,
        "digests": digests,
        "data": sorted(Path(name).suffix for name in names if name.startswith("lake/") and name.endswith(".parquet")),
        "files": sorted(name for name in names if name.startswith("traces/")),
        "log is whole": audit.verify(store).flaw == "",
        "days": [entry.detail["days"] for entry in logged],
        "datasets": sorted(window.digest for window in windows(store)),
    }
