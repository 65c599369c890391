"""The first commands of a deployment: several at once, and one that is killed while the storage is made; old runs."""

import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest

from jobs import dagster_storage
from jobs.dagster_storage import drop_runs

AT_ONCE = """
import os, sys
from jobs.dagster_storage import WholeSqliteStorage
read, write = os.pipe()
begun = []
for _ in range(4):
    pid = os.fork()
    if not pid:
        os.close(write)
        os.read(read, 1)  # the end of the pipe starts them all
        try:
            WholeSqliteStorage(sys.argv[1])
            os._exit(0)
        finally:
            os._exit(1)
    begun.append(pid)
os.close(write)
sys.exit(sum(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in begun))
"""
KILLED = """
import os, signal, sys
from dagster._core.storage.event_log import SqliteEventLogStorage
from jobs.dagster_storage import WholeSqliteStorage
SqliteEventLogStorage.reindex_assets = lambda self: os.kill(os.getpid(), signal.SIGKILL)
WholeSqliteStorage(sys.argv[1])
"""


def run(program: str, *arguments: str) -> int:
    return subprocess.run([sys.executable, "-c", program, *arguments], check=False).returncode


def tables(storage: Path) -> set[str]:
    with closing(sqlite3.connect(storage / "history" / "runs" / "index.db")) as connection:
        return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


@pytest.mark.situation("18-odd-paths", "right")
@pytest.mark.slow
def test_a_kill_while_it_is_made_leaves_none_and_all_find_it(tmp_path: Path) -> None:
    folder = tmp_path / "a%2Fb ?#ü [1]"
    storage = folder / "storage"
    assert run(KILLED, str(storage)) == -signal.SIGKILL
    assert not storage.exists()
    assert run(AT_ONCE, str(storage)) == 0
    assert sorted(path.name for path in folder.iterdir()) == [".storage.lock", "storage"]
    assert {"event_logs", "alembic_version"} <= tables(storage)
    assert {path.name for path in storage.iterdir()} == {"history", "schedules"}


@dg.asset
def made() -> None: ...


@pytest.mark.slow
def test_old_runs_go_but_for_an_assets_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = tmp_path / "workers"
    workers.mkdir()
    with dg.instance_for_test() as instance:
        ids = [dg.materialize([made], instance=instance).run_id for _ in range(3)]
        for id in ids:
            (workers / f"{id}.log").write_text("", encoding="utf-8")
        assert drop_runs(instance, workers) == 0, "none is old"
        monkeypatch.setattr(dagster_storage, "KEEP_RUNS", timedelta(days=-1))
        assert drop_runs(instance, workers) == 2
        assert [run.run_id for run in instance.get_runs()] == [path.stem for path in workers.iterdir()] == ids[2:]
        assert len(instance.fetch_materializations(made.key, limit=9).records) == 1
        home = Path(instance.root_directory)
        assert not [path for path in home.rglob("*") if any(id in path.name for id in ids[:2])]
