"""Dagster's SQLite storage, created whole or not at all: Dagster creates each database in several steps, so two first
commands at once, or a kill between two steps, would leave one that fails for good."""

import fcntl
import shutil
from pathlib import Path

from dagster._cli.workspace.cli_target import get_workspace_from_cli_opts
from dagster._core.storage.event_log.sqlite import sqlite_event_log
from dagster._core.storage.runs.sqlite import sqlite_run_storage
from dagster._core.storage.schedules.sqlite import sqlite_schedule_storage
from dagster._core.storage.sqlite_storage import DagsterSqliteStorage, SqliteStorageConfig
from dagster._serdes import ConfigurableClassData

from pipeline.core.locations import sqlite_url
from pipeline.places.disk import socket_faults

for each in (sqlite_event_log, sqlite_run_storage, sqlite_schedule_storage):  # their own fails for % and ? in a path
    vars(each)["create_db_conn_string"] = lambda base, name: sqlite_url(Path(base, f"{name}.db").absolute())
# A typed command's code server tells the terminal how it starts; its log level has no option.
vars(get_workspace_from_cli_opts)["__wrapped__"].__defaults__ = (False, "WARNING")


class WholeSqliteStorage(DagsterSqliteStorage):
    """Runs, events, schedules and sensors below `base_dir`, which is there only once all of its tables are."""

    def __init__(self, base_dir: str, inst_data: ConfigurableClassData | None = None) -> None:
        if faults := socket_faults():  # of code servers and steps
            raise SystemExit(faults[0])
        _begin(Path(base_dir))
        super().__init__(base_dir, inst_data)

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData | None, config_value: SqliteStorageConfig
    ) -> "WholeSqliteStorage":
        """Dagster's own makes its own class whatever this one is."""
        return cls(config_value["base_dir"], inst_data)


def _begin(base: Path) -> None:
    if base.exists():
        return
    base.parent.mkdir(parents=True, exist_ok=True)
    with base.with_name(f".{base.name}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if base.exists():
            return
        begun = base.with_name(f".{base.name}.begun")
        shutil.rmtree(begun, ignore_errors=True)  # of a command that was killed
        DagsterSqliteStorage.from_local(str(begun))
        begun.rename(base)
