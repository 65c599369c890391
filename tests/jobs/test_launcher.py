"""A run's worker is known by its pid and its start; which daemon a launch leaves its run to, and how long it waits for
a canceled one, whatever the clock says."""

import itertools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import click
import dagster as dg
import pytest

from jobs import coordinator
from jobs.coordinator import HEARTBEAT_S, TAKES_RUNS, RunLines, daemon_is_alive
from jobs.launcher import DetachedRunLauncher, launcher_of
from jobs.workers import Worker
from tests.loop import ROOT

DAY_S = 86_400.0


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


@pytest.mark.parametrize(("age_s", "is_alive"), [(1.0, True), (HEARTBEAT_S + 5.0, False), (-DAY_S, False)])
def test_a_daemon_of_before_a_clock_was_set_back_is_gone(age_s: float, is_alive: bool, tmp_path: Path) -> None:
    from dagster._daemon.types import DaemonHeartbeat

    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        assert not daemon_is_alive(instance)
        instance.add_daemon_heartbeat(DaemonHeartbeat(time.time() - age_s, TAKES_RUNS, "a daemon", None))
        assert daemon_is_alive(instance) is is_alive


def test_looks_that_fail_are_tried_again_before_the_run_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    follower = coordinator.RunFollower.__new__(coordinator.RunFollower)
    follower.faults, follower.lines = 0, RunLines(dg.DagsterRun("toy"))
    monkeypatch.setattr(follower, "is_over", lambda: 1 // 0)
    looks = [follower._is_over_or_lost() for _ in range(coordinator.FAULTS + 1)]
    assert looks == [*[False] * coordinator.FAULTS, True]
    assert follower.lines.reason.startswith("Lost sight of the run, which may go on: ZeroDivisionError")


@pytest.mark.slow
def test_a_canceled_run_is_not_killed_within_its_trainers_grace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every look at the clock is a day after the one before, and the daemon has given the run up."""
    shutil.copy(ROOT / "dagster.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    days = itertools.count(step=DAY_S)
    monkeypatch.setattr(coordinator, "time", SimpleNamespace(**{**vars(time), "monotonic": lambda: next(days)}))
    saves = "trap 'sleep 1; touch saved; exit' TERM; while :; do touch ready; sleep 0.1; done"
    with (
        dg.DagsterInstance.from_config(str(tmp_path)) as instance,
        subprocess.Popen(["bash", "-c", saves], start_new_session=True) as worker,
    ):
        run = instance.add_run(dg.DagsterRun("toy", status=dg.DagsterRunStatus.STARTED))
        launcher = launcher_of(instance)
        launcher.directory.mkdir(parents=True)
        launcher.workers.add(run.run_id, "toy", "", worker.pid)
        while not (tmp_path / "ready").exists():
            time.sleep(0.01)
        queue = instance.run_coordinator
        assert isinstance(queue, coordinator.FollowingRunCoordinator)
        follower = coordinator.RunFollower(queue, instance, None, run)
        follower.signals.append(signal.SIGINT)
        assert not follower.is_over()
        assert not follower.is_over()
        instance.report_run_canceled(run)
        assert follower.is_over()
        assert (tmp_path / "saved").exists()
