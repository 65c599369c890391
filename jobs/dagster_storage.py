"""Dagster's SQLite storage, created whole or not at all: Dagster creates each database in several steps, so two first
commands at once, or a kill between two steps, would leave one that fails for good. And the retention of runs."""

import fcntl
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
from dagster._cli.workspace.cli_target import get_workspace_from_cli_opts
from dagster._core.storage.dagster_run import FINISHED_STATUSES
from dagster._core.storage.event_log.sqlite import sqlite_event_log
from dagster._core.storage.runs.sqlite import sqlite_run_storage
from dagster._core.storage.schedules.sqlite import sqlite_schedule_storage
from dagster._core.storage.sqlite_storage import DagsterSqliteStorage, SqliteStorageConfig
from dagster._serdes import ConfigurableClassData

from pipeline.core.locations import sqlite_url

for each in (sqlite_event_log, sqlite_run_storage, sqlite_schedule_storage):  # their own fails for % and ? in a path
    vars(each)["create_db_conn_string"] = lambda base, name: sqlite_url(Path(base, f"{name}.db").absolute())
# A typed command's code server tells the terminal how it starts; its log level has no option.
vars(get_workspace_from_cli_opts)["__wrapped__"].__defaults__ = (False, "WARNING")

KEEP_RUNS = timedelta(days=90)
"""How long a run stays in Dagster after its end."""


class WholeSqliteStorage(DagsterSqliteStorage):
    """Runs, events, schedules and sensors below `base_dir`, which is there only once all of its tables are."""

    def __init__(self, base_dir: str, inst_data: ConfigurableClassData | None = None) -> None:
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


def drop_runs(instance: dg.DagsterInstance, workers: Path) -> int:
    """Delete the runs that ended KEEP_RUNS ago, with their events and output, but for the one that made an asset last;
    how many they were. `workers`: the folder of their files here."""
    last = instance.get_latest_materialization_events(instance.all_asset_keys()).values()
    kept, log = {event.run_id for event in last if event is not None}, instance.event_log_storage
    ended = dg.RunsFilter(statuses=FINISHED_STATUSES, updated_before=datetime.now(UTC) - KEEP_RUNS)
    gone = [run.run_id for run in instance.get_runs(ended) if run.run_id not in kept]
    for id in gone:
        instance.compute_log_manager.delete_logs(prefix=[id])
        instance.delete_run(id)
        shards = [Path(log.path_for_shard(id))] if isinstance(log, sqlite_event_log.SqliteEventLogStorage) else []
        for path in (*shards, *workers.glob(f"{id}.*")):
            path.unlink(missing_ok=True)
    return len(gone)
