"""Runs on one machine: a worker process each, found again by its pid file. A worker that was killed leaves no run in
progress, no steps at work and no pool slots taken."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import dagster as dg
from dagster._core.launcher import CheckRunHealthResult, LaunchRunContext, RunLauncher, WorkerStatus
from dagster._core.storage.dagster_run import ACTIVE_RUN_STATUSES
from dagster._grpc.types import ExecuteRunArgs
from dagster._serdes import ConfigurableClass, ConfigurableClassData, serialize_value

from assets.environment import DATA_ROOT_TAG, worker_environment
from jobs.workers import WorkerFiles, process_start


class DetachedRunLauncher(RunLauncher, ConfigurableClass):
    """Gives each run a worker in a session of its own, with its pid and its output in `directory`.

    The session keeps the terminal's Ctrl-C and hang-up from the run, and makes one process group of the worker, its
    steps and their children, so that all of them can be ended, also when the worker is gone already.
    """

    def __init__(self, directory: str, inst_data: ConfigurableClassData | None = None):
        super().__init__()
        if not Path("dagster.yaml").is_file():  # its paths are relative: another instance would begin here
            raise click.ClickException(
                "There is no dagster.yaml here. The instance belongs to the directory of its file: "
                "cd there, and type the command again."
            )
        self.directory, self._inst_data = Path(directory), inst_data
        self.workers = WorkerFiles(self.directory)

    @property
    def inst_data(self):
        return self._inst_data

    @classmethod
    def config_type(cls):
        return {"directory": dg.StringSource}

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]):
        return cls(inst_data=inst_data, **config_value)

    def launch_run(self, context: LaunchRunContext) -> None:
        run, origin = context.dagster_run, context.job_code_origin
        assert origin is not None, "every launched run has code behind it"
        work = ExecuteRunArgs(job_origin=origin, run_id=run.run_id, instance_ref=self._instance.get_ref())
        self.directory.mkdir(parents=True, exist_ok=True)
        with self.output(run.run_id).open("ab") as output:
            worker = subprocess.Popen(
                [sys.executable, "-m", "dagster", "api", "execute_run", serialize_value(work)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=worker_environment(run.tags),
                start_new_session=True,
            )
        self.workers.add(run.run_id, run.job_name, run.tags.get(DATA_ROOT_TAG, ""), worker.pid)

    def terminate(self, run_id: str) -> bool:
        run = self._instance.get_run_by_id(run_id)
        if run is None or run.is_finished:
            return False
        self._instance.report_run_canceling(run)
        worker = self.workers.find(run_id)
        if worker is None or not worker.is_alive:
            return False
        with suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGTERM)
        return True

    def output(self, run_id: str) -> Path:
        return self.directory / f"{run_id}.log"

    def is_alive(self, run_id: str) -> bool:
        worker = self.workers.find(run_id)
        return worker is not None and worker.is_alive

    def kill(self, run_id: str) -> None:
        """Kill what is left of a run: its worker, or the steps and trainers that a killed worker left behind."""
        worker = self.workers.find(run_id)
        # A process at that pid that is not the worker is another one, under a number that is in use again.
        if worker is not None and (worker.is_alive or process_start(worker.pid) is None):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(worker.pid, signal.SIGKILL)

    @property
    def supports_check_run_worker_health(self) -> bool:
        return True

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        """What the daemon asks of a run in progress: a dead worker's run is failed, so its steps are ended here."""
        if self.workers.find(run.run_id) is None or self.is_alive(run.run_id):
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        self.kill(run.run_id)
        return CheckRunHealthResult(WorkerStatus.FAILED, self.get_run_worker_debug_info(run))

    def get_run_worker_debug_info(self, run: dg.DagsterRun, include_container_logs: bool | None = True) -> str:
        return f"The worker of the run crashed or was killed. Its output: {self.output(run.run_id)}"


def launcher_of(instance: dg.DagsterInstance) -> DetachedRunLauncher:
    """The instance's, which `dagster.yaml` names."""
    launcher = instance.run_launcher
    assert isinstance(launcher, DetachedRunLauncher), "dagster.yaml names it, and so does every instance of a test"
    return launcher


def reap_dead_runs(instance: dg.DagsterInstance) -> None:
    """End the runs whose worker is dead, and give back the pool slots of runs that are over or forgotten."""
    for run in instance.get_runs(dg.RunsFilter(statuses=ACTIVE_RUN_STATUSES)):
        reap_if_dead(instance, run.run_id)
    log = instance.event_log_storage
    pools = [log.get_concurrency_info(key) for key in log.get_concurrency_keys()]
    for run_id in {step.run_id for pool in pools for step in (*pool.claimed_slots, *pool.pending_steps)}:
        run = instance.get_run_by_id(run_id)
        if run is None or (run.is_finished and not launcher_of(instance).is_alive(run_id)):
            launcher_of(instance).kill(run_id)
            log.free_concurrency_slots_for_run(run_id)


def reap_if_dead(instance: dg.DagsterInstance, run_id: str) -> None:
    """Mark the run failed, or canceled if that was asked for, when its worker is dead and has not said how it ended."""
    run = instance.get_run_by_id(run_id)
    if run is None or instance.run_launcher.check_run_worker_health(run).status is WorkerStatus.RUNNING:
        return
    run = instance.get_run_by_id(run_id)  # again: a worker may have said it just before its end
    if run is None or run.is_finished:
        return
    if run.status is dg.DagsterRunStatus.CANCELING:
        instance.report_run_canceled(run, "The run was canceled.")
    else:
        instance.report_run_failed(run, instance.run_launcher.get_run_worker_debug_info(run))
