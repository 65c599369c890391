"""A run's worker is known again by its pid and its start, from its first moment on."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from jobs.launcher import DetachedRunLauncher
from jobs.workers import Worker
from tests.loop import ROOT


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DetachedRunLauncher:
    shutil.copy(ROOT / "dagster.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    return DetachedRunLauncher(str(tmp_path))


@pytest.fixture
def worker() -> Iterator[int]:
    """A process that has no command line of its own yet: it was forked, in a session of its own, and did not exec."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        while True:
            signal.pause()
    yield pid
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_a_worker_that_is_about_to_exec_is_alive(launcher: DetachedRunLauncher, worker: int) -> None:
    launcher.workers.add("run", "toy", "", worker)
    assert launcher.is_alive("run")


def test_another_process_under_its_pid_is_not_the_worker(launcher: DetachedRunLauncher, worker: int) -> None:
    reused = Worker(run="run", job="toy", data_root="", pid=worker, start=1)  # as if the number was in use again
    launcher.workers.directory.joinpath("run.json").write_text(reused.model_dump_json())
    assert not launcher.is_alive("run")
    launcher.kill("run")
    assert os.waitpid(worker, os.WNOHANG) == (0, 0), "it is somebody else's"


def test_a_worker_that_has_ended_is_not_alive(launcher: DetachedRunLauncher) -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    launcher.workers.add("run", "toy", "", pid)  # which may find it a zombie already
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert not launcher.is_alive("run")
    os.waitpid(pid, 0)
    assert not launcher.is_alive("run")


def test_a_launch_in_another_directory_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(click.ClickException, match=r"There is no dagster\.yaml here.*cd there"):
        DetachedRunLauncher(str(tmp_path))
    assert list(tmp_path.iterdir()) == []
