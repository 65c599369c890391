"""An upkeep of a governed table, and what it leaves: for kills at each of its writes."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFile

from pipeline.core.storage import Store
from pipeline.traces.lake import Lake, local_lake, open_lake
from pipeline.traces.lake import files as lake_files
from pipeline.traces.lake.files import path_of, write_files
from pipeline.traces.retention import upkeep
from tests.contexts import quiet
from tests.pipeline.traces.lake.lakes import DAY, NEXT_DAY, batch, ids, put, row

WRITES = (
    (PyArrowFile, "create"),
    (SqlCatalog, "commit_table"),
    (lake_files, "write_files"),
    (Lake, "expire"),
    (Lake, "sweep"),
)
"""What PyArrow and SQLite do by themselves."""


def fill(root: Path) -> None:
    config = local_lake(Store(root))
    with open_lake(config) as lake:
        put(lake, config, DAY, [row(0)], "older")
        for day in (DAY, NEXT_DAY):
            small = [uri for n in range(3) for uri in write_files(config, day, "x", [batch([row(n, day)])])]
            lake.replace_day(day, small, "a")


def work(root: Path) -> None:
    upkeep(local_lake(Store(root)), 30, datetime.now(UTC) + timedelta(days=31), quiet, grace_s=0)


def state(root: Path) -> dict[str, Any]:
    config = local_lake(Store(root))
    with open_lake(config) as lake:
        table = {"rows": ids(lake, DAY, NEXT_DAY), "digests": lake.digests()}
    names = [path.name for path in Path(path_of(config.location)).rglob("*") if path.is_file()]
    return {**table, "data": sum(name.endswith(".parquet") for name in names)}
