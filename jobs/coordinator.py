"""How a run is queued, launched and followed on one machine, so that `dagster job launch` takes a job to its end.

Dagster's own parts leave the run in the queue when no daemon is there, return before it has ended, and wait for ever
for the pool slot of a worker that was killed. `dagster.yaml` names the launcher and the coordinator of this file; a
cluster has an instance file and parts of its own.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import click
import dagster as dg
from dagster._config import StringSource
from dagster._core.event_api import EventLogRecord
from dagster._core.events import DagsterEventType, EngineEventData
from dagster._core.launcher import CheckRunHealthResult, LaunchRunContext, RunLauncher, WorkerStatus
from dagster._core.run_coordinator import QueuedRunCoordinator, SubmitRunContext
from dagster._core.storage.dagster_run import ACTIVE_RUN_STATUSES
from dagster._grpc.types import ExecuteRunArgs
from dagster._serdes import ConfigurableClass, ConfigurableClassData
from dagster._utils.error import SerializableErrorInfo

HEARTBEAT_S = 60
"""A daemon writes a heartbeat every 30 s; with two of them missing it counts as gone."""
PATIENCE_S = 60
"""What a canceled run gets to end by itself: a trainer writes a last checkpoint."""
POLL_S = 0.5


class DetachedRunLauncher(RunLauncher, ConfigurableClass):
    """Gives each run a worker process in a session of its own, with its pid and its output in `directory`.

    The session keeps the terminal's Ctrl-C and hang-up from the run, and the output from the terminal. It also makes
    one process group of the worker, its steps and their children, which is how they are ended.
    """

    def __init__(self, directory: str, inst_data: ConfigurableClassData | None = None):
        super().__init__()
        self.directory, self._inst_data = Path(directory), inst_data

    @property
    def inst_data(self):
        return self._inst_data

    @classmethod
    def config_type(cls):
        return {"directory": StringSource}

    @classmethod
    def from_config_value(cls, inst_data, config_value):
        return cls(inst_data=inst_data, **config_value)

    def launch_run(self, context: LaunchRunContext) -> None:
        run = context.dagster_run
        work = ExecuteRunArgs(
            job_origin=context.job_code_origin, run_id=run.run_id, instance_ref=self._instance.get_ref()
        )
        self.directory.mkdir(parents=True, exist_ok=True)
        with self.output(run.run_id).open("ab") as output:
            worker = subprocess.Popen(
                work.get_command_args(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._pid_file(run.run_id).write_text(str(worker.pid))

    def output(self, run_id: str) -> Path:
        return self.directory / f"{run_id}.log"

    def _pid_file(self, run_id: str) -> Path:
        return self.directory / f"{run_id}.pid"

    def pid(self, run_id: str) -> int | None:
        """The pid of the run's worker, also after its end; None for a run that is not of this launcher."""
        with suppress(FileNotFoundError, ValueError):
            return int(self._pid_file(run_id).read_text())
        return None

    def is_alive(self, run_id: str) -> bool:
        pid = self.pid(run_id)
        return pid is not None and run_id in _command_line(pid)

    def terminate(self, run_id: str) -> bool:
        run = self._instance.get_run_by_id(run_id)
        if run is None or run.is_finished:
            return False
        self._instance.report_run_canceling(run)
        if alive := self.is_alive(run_id):
            os.kill(self.pid(run_id), signal.SIGTERM)
        return alive

    def kill(self, run_id: str) -> None:
        """Kill what is left of a run: its worker, or the steps and trainers that a killed worker left behind."""
        pid = self.pid(run_id)
        # A process at that pid that is not the worker is somebody else's, under a number that is in use again.
        if pid is not None and (self.is_alive(run_id) or not _command_line(pid)):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)

    @property
    def supports_check_run_worker_health(self) -> bool:
        return True

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        if self.pid(run.run_id) is None or self.is_alive(run.run_id):
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        self.kill(run.run_id)
        return CheckRunHealthResult(WorkerStatus.FAILED, self.get_run_worker_debug_info(run))

    def get_run_worker_debug_info(self, run: dg.DagsterRun, include_container_logs: bool | None = True) -> str:
        return f"The run's worker was killed, or crashed. Its output: {self.output(run.run_id)}"


class FollowingRunCoordinator(QueuedRunCoordinator):
    """Queues a run when a daemon is there to take it, else launches it; for `dagster job launch`, follows it."""

    def submit_run(self, context: SubmitRunContext) -> dg.DagsterRun:
        instance, run = self._instance, context.dagster_run
        bury_the_dead(instance)
        others = instance.get_runs(dg.RunsFilter(job_name=run.job_name, statuses=ACTIVE_RUN_STATUSES))
        alive = [other.run_id for other in others if instance.run_launcher.is_alive(other.run_id)]
        if daemon_is_alive(instance):
            super().submit_run(context)
        elif alive:
            pid = instance.run_launcher.pid(alive[0])
            message = f"Run {alive[0]} of {run.job_name} is in progress. Wait for its end, or cancel it: kill {pid}"
            instance.report_run_canceled(run, message)
        else:
            instance.launch_run(run.run_id, context.workspace)
        command = click.get_current_context(silent=True)
        if command and command.command_path.endswith("job launch"):
            status = Follower(self, context).follow()
            # Not raised here: to the instance, whatever leaves this method is a failure of the run.
            command.call_on_close(lambda: sys.exit(status))
        return instance.get_run_by_id(run.run_id) or run

    def dispose(self) -> None:
        command = click.get_current_context(silent=True)
        if command and command.command_path.endswith("daemon run"):
            self._instance.wipe_daemon_heartbeats()  # a daemon that was stopped is gone now, not in a minute


def daemon_is_alive(instance: dg.DagsterInstance) -> bool:
    from dagster._daemon.run_coordinator import QueuedRunCoordinatorDaemon

    heartbeat = instance.get_daemon_heartbeats().get(QueuedRunCoordinatorDaemon.daemon_type())
    return heartbeat is not None and time.time() - heartbeat.timestamp < HEARTBEAT_S


def bury_the_dead(instance: dg.DagsterInstance) -> None:
    """End the runs whose worker was killed, and give back the pool slots of runs that are over or forgotten."""
    for run in instance.get_runs(dg.RunsFilter(statuses=ACTIVE_RUN_STATUSES)):
        bury_if_dead(instance, run.run_id)
    log = instance.event_log_storage
    pools = [log.get_concurrency_info(key) for key in log.get_concurrency_keys()]
    for run_id in {step.run_id for pool in pools for step in (*pool.claimed_slots, *pool.pending_steps)}:
        run = instance.get_run_by_id(run_id)
        if run is None or run.is_finished:
            instance.run_launcher.kill(run_id)
            log.free_concurrency_slots_for_run(run_id)


def bury_if_dead(instance: dg.DagsterInstance, run_id: str) -> None:
    run = instance.get_run_by_id(run_id)
    if run is None or instance.run_launcher.check_run_worker_health(run).status is WorkerStatus.RUNNING:
        return
    run = instance.get_run_by_id(run_id)  # again: a worker that is gone has had its last word
    if run is None or run.is_finished:
        return
    if run.status is dg.DagsterRunStatus.CANCELING:
        instance.report_run_canceled(run, "The run was canceled.")
    else:
        instance.report_run_failed(run, instance.run_launcher.get_run_worker_debug_info(run))


class Follower:
    """Prints what a run does until it ends; SIGINT and SIGTERM cancel it, a second one kills it."""

    def __init__(self, coordinator: FollowingRunCoordinator, context: SubmitRunContext):
        self.coordinator, self.workspace = coordinator, context.workspace
        self.instance, self.run = coordinator._instance, context.dagster_run
        self.width = max(map(len, self.run.step_keys_to_execute or ["run"]))
        self.cursor: str | None = None
        self.began = time.time()
        self.step_began: dict[str, float] = {}
        self.failed: dict[str, str] = {}
        self.reason = ""
        self.signals: list[int] = []
        self.canceled_at = 0.0

    def follow(self) -> int:
        """Returns the exit status: 0 for success, 1 for failure, 128 and the number of the signal that canceled."""
        listening = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) != signal.SIG_IGN]
        before = {number: signal.signal(number, lambda number, _: self.signals.append(number)) for number in listening}
        try:
            while not self._is_over():
                time.sleep(POLL_S)
            return self._conclude()
        except Exception as fault:  # the boundary between watching and running: a fault here is not the run's
            self._say("run", f"lost sight of the run, which goes on: {fault!r}")
            return 1
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _is_over(self) -> bool:
        """One look at the run: what is new, whether a signal came, whether somebody still works on it."""
        run = self.instance.get_run_by_id(self.run.run_id)
        if run is None:
            raise ValueError("it was deleted")
        first, self.run = self.cursor is None, run
        self._print_news()
        if run.is_finished:
            return True
        if first and run.status is dg.DagsterRunStatus.QUEUED:
            self._say("run", "queued for the daemon")
        if self.signals and not self.canceled_at:
            self._say("run", "canceling; a second Ctrl-C kills it")
            self.canceled_at = time.time()
            self.coordinator.cancel_run(run.run_id)
        elif len(self.signals) > 1 or (self.canceled_at and time.time() > self.canceled_at + PATIENCE_S):
            self.instance.run_launcher.kill(run.run_id)
        if run.status is not dg.DagsterRunStatus.QUEUED:
            bury_if_dead(self.instance, run.run_id)
        elif not self.canceled_at and not daemon_is_alive(self.instance):
            self._say("run", "the daemon that was to take it is gone: launched directly")
            self.instance.launch_run(run.run_id, self.workspace)
        return False

    def _conclude(self) -> int:
        run, launcher = self.run, self.instance.run_launcher
        deadline = time.time() + (0 if len(self.signals) > 1 else 10)
        while launcher.is_alive(run.run_id) and time.time() < deadline:
            time.sleep(0.1)
        launcher.kill(run.run_id)
        self.instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
        took = f"{time.time() - self.began:.0f} s (run {run.run_id})"
        again = ["dagster", *sys.argv[1:]]
        if run.is_success:
            self._say("run", f"SUCCESS in {took}")
            return 0
        if run.is_failure:
            self._say("run", f"FAILURE after {took}")
            for step, error in self.failed.items() or [("run", self.reason)]:
                self._say(step, error)
            first = next(iter(self.failed), "")
            # A stage reads what the stages before it published, so a run can begin at the one that failed.
            if first.isidentifier() and not {"-o", "--op-selection"} & {*again}:
                again += ["-o", f"{first}+"]
            self._say("run", f"output of the worker: {launcher.output(run.run_id)}")
            self._say("run", f"to try again from there: {shlex.join(again)}")
            return 1
        self._say("run", f"CANCELED after {took}" + ("" if self.signals else f": {self.reason}"))
        self._say("run", f"to launch it again: {shlex.join(again)}")
        return 128 + self.signals[0] if self.signals else 1

    def _print_news(self) -> None:
        news = self.instance.get_records_for_run(self.run.run_id, self.cursor)
        self.cursor = news.cursor
        for record in news.records:
            self._print(record)

    def _print(self, record: EventLogRecord) -> None:
        entry, event = record.event_log_entry, record.event_log_entry.dagster_event
        step = entry.step_key or "run"
        if event is None:
            self._say(step, entry.user_message, entry.timestamp)
            return
        data, took = event.event_specific_data, entry.timestamp - self.step_began.get(step, entry.timestamp)
        match event.event_type:
            case DagsterEventType.STEP_START | DagsterEventType.STEP_RESTARTED:
                self.step_began[step] = entry.timestamp
                self._say(step, "started", entry.timestamp)
            case DagsterEventType.STEP_SUCCESS:
                self._say(step, f"done in {took:.1f} s", entry.timestamp)
            case DagsterEventType.STEP_SKIPPED:
                self._say(step, "skipped", entry.timestamp)
            case DagsterEventType.STEP_UP_FOR_RETRY:
                self._say(step, f"failed after {took:.1f} s, will be retried: {_brief(data.error)}", entry.timestamp)
            case DagsterEventType.STEP_FAILURE:
                self.failed[step] = _brief(data.error) if data.error else "failed"
                self._say(step, f"FAILED after {took:.1f} s: {self.failed[step]}", entry.timestamp)
            case DagsterEventType.ASSET_CHECK_EVALUATION if not data.passed:
                self._say(step, f"check {data.check_name} ({data.severity.value}): {data.description}", entry.timestamp)
            case DagsterEventType.ENGINE_EVENT if isinstance(data, EngineEventData) and "pool" in data.metadata:
                self._say(step, event.message or "", entry.timestamp)
            case DagsterEventType.ENGINE_EVENT if isinstance(data, EngineEventData) and data.error:
                self._say(step, f"{event.message} {_brief(data.error)}", entry.timestamp)
            case DagsterEventType.RUN_FAILURE | DagsterEventType.RUN_CANCELED:
                self.reason = event.message or ""

    def _say(self, step: str, text: str, at: float | None = None) -> None:
        clock = time.strftime("%H:%M:%S", time.localtime(at))
        with suppress(BrokenPipeError):  # a reader that has gone, as in `| head`, does not end the run
            for line in text.splitlines():
                print(f"{clock}  {step:<{self.width}}  {line}", flush=True)


def _brief(error: SerializableErrorInfo) -> str:
    """The error of the step's own code, in one or a few lines: `ValueError: what is wrong`."""
    own = error.cause if error.cls_name == "DagsterExecutionStepExecutionError" and error.cause else error
    return re.sub(r"^[\w.]*\.(?=\w+:)", "", own.message).strip()


def _command_line(pid: int) -> str:
    """The command line of a process; empty when there is none, or only a zombie."""
    if sys.platform == "linux":
        with suppress(FileNotFoundError, ProcessLookupError):
            return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
        return ""
    return subprocess.run(["ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, text=True).stdout
