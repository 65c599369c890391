"""Who takes a run on one machine: the daemon when there is one, else this process, which then stays with the run.

So `dagster job launch` takes a job to its end in a fresh clone, with its progress on the terminal and an exit status.
The stock coordinators leave the run in the queue where no daemon is, or return before it has ended.
"""

import re
import shlex
import signal
import sys
import time
from contextlib import suppress
from typing import TypeGuard

import click
import dagster as dg
from dagster._core.events import DagsterEventType, EngineEventData
from dagster._core.run_coordinator import QueuedRunCoordinator, SubmitRunContext
from dagster._utils.error import SerializableErrorInfo

from jobs.launcher import reap_dead_runs, reap_if_dead

HEARTBEAT_S = 60
"""A daemon writes a heartbeat every 30 s; with two of them missing it counts as gone."""
PATIENCE_S = 115
"""What a canceled run gets to end by itself, for a trainer's last checkpoint (a little more than the default
`training.grace_s`), and an ended one's worker to leave."""
POLL_S = 0.5
FAULTS = 10
"""How many looks at a run may fail, on a busy database for one, before it counts as lost from sight."""


class FollowingRunCoordinator(QueuedRunCoordinator):
    """Queues a run when a daemon is there to take it, else launches it; for `dagster job launch`, follows it."""

    def submit_run(self, context: SubmitRunContext) -> dg.DagsterRun:
        instance, run = self._instance, context.dagster_run
        reap_dead_runs(instance)
        if run.status is dg.DagsterRunStatus.NOT_STARTED:  # else it is at work already, and is only followed
            if daemon_is_alive(instance):
                super().submit_run(context)
            else:
                instance.launch_run(run.run_id, context.workspace)
        command = click.get_current_context(silent=True)
        if is_launch_command(command):
            follower = RunFollower(self, context, run)
            follower.follow()
            # Not here: to the instance, whatever is raised in this method is a failure of the run.
            command.call_on_close(lambda: sys.exit(follower.conclude()))
        return instance.get_run_by_id(run.run_id) or run

    def dispose(self) -> None:
        command = click.get_current_context(silent=True)
        if command and command.command_path.endswith("daemon run"):
            self._instance.wipe_daemon_heartbeats()  # a daemon that was stopped is gone now, not in a minute


def is_launch_command(command: click.Context | None) -> TypeGuard[click.Context]:
    """Whether this process is `dagster job launch`, typed by somebody who waits for the run."""
    return command is not None and command.command_path.endswith("job launch")


def daemon_is_alive(instance: dg.DagsterInstance) -> bool:
    from dagster._daemon.run_coordinator import QueuedRunCoordinatorDaemon  # heavy, and only of use here

    heartbeat = instance.get_daemon_heartbeats().get(QueuedRunCoordinatorDaemon.daemon_type())
    return heartbeat is not None and time.time() - heartbeat.timestamp < HEARTBEAT_S


class RunFollower:
    """Prints what a run does until it has ended; SIGINT or SIGTERM cancels it, a second one kills it."""

    def __init__(self, coordinator: FollowingRunCoordinator, context: SubmitRunContext, run: dg.DagsterRun):
        self.coordinator, self.workspace = coordinator, context.workspace
        self.instance, self.run = coordinator._instance, run
        self.launcher = self.instance.run_launcher
        self.steps = self.run.step_keys_to_execute or []
        self.width = max(map(len, ["run", *self.steps]))
        self.cursor: str | None = None
        self.began = self.ended = time.time()
        self.step_began: dict[str, float] = {}
        self.failed: dict[str, str] = {}
        self.reason = ""
        self.signals: list[int] = []
        self.canceled_at = 0.0
        self.faults = 0

    def follow(self) -> None:
        """Stays until nothing of the run is left: no worker, no step, no pool slot."""
        listening = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) != signal.SIG_IGN]
        before = {number: signal.signal(number, lambda number, _: self.signals.append(number)) for number in listening}
        try:
            while not self._is_over_or_lost():
                time.sleep(POLL_S)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def conclude(self) -> int:
        """Says how the run ended, and returns the exit status: 0 for success, 1 for failure, 130 for a Ctrl-C."""
        run, again = self.run, ["dagster", *sys.argv[1:]]
        took = f"{self.ended - self.began:.0f} s (run {run.run_id})"
        if run.is_success:
            self._say("run", f"SUCCESS in {took}")
            return 0
        if run.status is dg.DagsterRunStatus.CANCELED and self.signals:
            self._say("run", f"CANCELED after {took}. To launch it again: {shlex.join(again)}")
            return 128 + self.signals[0]
        self._say("run", f"{run.status.value} after {took}")
        for step, error in self.failed.items() or [("run", self.reason)]:
            self._say(step, error)
        if self.launcher.pid(run.run_id):
            self._say("run", f"output of its worker: {self.launcher.output(run.run_id)}")
        # A stage reads what the stages before it published, so a run can begin at the one that failed.
        failed = [step for step in self.failed if step in self.steps]
        if failed and not {"-o", "--op-selection"} & {*again}:
            again += ["-o", f"{failed[0]}*"]
        self._say("run", f"to try again: {shlex.join(again)}")
        return 1

    def _is_over_or_lost(self) -> bool:
        try:
            return self._is_over()
        except Exception as fault:  # the boundary between watching and running: a fault here is not the run's
            self.faults += 1
            self.reason = f"Lost sight of the run, which may go on: {fault!r}"
            return self.faults > FAULTS

    def _is_over(self) -> bool:
        """One look at the run: what is new, whether a signal came, whether somebody still works on it."""
        run = self.instance.get_run_by_id(self.run.run_id)
        if run is None:
            raise ValueError("it was deleted")
        self.run, self.ended = run, time.time()
        news = self.instance.get_records_for_run(run.run_id, self.cursor)
        self.cursor = news.cursor
        for record in news.records:
            self._print(record.event_log_entry)
        if run.is_finished:
            deadline = time.time() + PATIENCE_S
            while self.launcher.is_alive(run.run_id) and time.time() < deadline:
                time.sleep(0.1)
            self.launcher.kill(run.run_id)
            self.instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
            return True
        if self.signals and not self.canceled_at:
            self._say("run", "canceling; a second Ctrl-C kills it")
            self.canceled_at = time.time()
            self.coordinator.cancel_run(run.run_id)
        elif len(self.signals) > 1 or (self.canceled_at and time.time() > self.canceled_at + PATIENCE_S):
            self.launcher.kill(run.run_id)
        if run.status is not dg.DagsterRunStatus.QUEUED:
            reap_if_dead(self.instance, run.run_id)
        elif not self.canceled_at and not daemon_is_alive(self.instance):
            self._say("run", "the daemon that was to take it is gone: launched without it")
            self.instance.launch_run(run.run_id, self.workspace)
        return False

    def _print(self, entry: dg.EventLogEntry) -> None:
        event, step = entry.dagster_event, entry.step_key or "run"
        if event is None:
            if not entry.user_message.startswith("Dependencies for step"):  # the failure above it says it all
                self._say(step, entry.user_message, entry.timestamp)
            return
        data, took = event.event_specific_data, entry.timestamp - self.step_began.get(step, entry.timestamp)
        match event.event_type:
            case DagsterEventType.RUN_ENQUEUED:
                self._say(step, "queued for the daemon", entry.timestamp)
            case DagsterEventType.RUN_STARTING:
                self._say(step, f"{self.run.job_name} launched (run {self.run.run_id})", entry.timestamp)
            case DagsterEventType.STEP_START | DagsterEventType.STEP_RESTARTED:
                self.step_began[step] = entry.timestamp
                self._say(step, "started", entry.timestamp)
            case DagsterEventType.STEP_SUCCESS:
                self._say(step, f"done in {took:.1f} s", entry.timestamp)
            case DagsterEventType.STEP_SKIPPED:
                self._say(step, "skipped", entry.timestamp)
            case DagsterEventType.STEP_UP_FOR_RETRY:
                self.failed.pop(step, None)
                self._say(step, f"failed after {took:.1f} s, will be retried: {_brief(data.error)}", entry.timestamp)
            case DagsterEventType.STEP_FAILURE if (
                data.error and data.error.cls_name == "DagsterExecutionInterruptedError"
            ):
                self._say(step, f"interrupted after {took:.1f} s", entry.timestamp)
            case DagsterEventType.STEP_FAILURE:
                self.failed.setdefault(step, _brief(data.error))  # a crash has explained itself before
                self._say(step, f"FAILED after {took:.1f} s: {self.failed[step]}", entry.timestamp)
            case DagsterEventType.ASSET_CHECK_EVALUATION if not data.passed:
                detail = data.description or "not passed"
                self._say(step, f"check {data.check_name} ({data.severity.value}): {detail}", entry.timestamp)
            case DagsterEventType.ENGINE_EVENT if isinstance(data, EngineEventData) and "pool" in data.metadata:
                self._say(step, event.message or "", entry.timestamp)
            case DagsterEventType.ENGINE_EVENT if isinstance(data, EngineEventData) and data.error:
                self.failed[step] = f"{event.message} {_brief(data.error)}"
            case DagsterEventType.RUN_FAILURE | DagsterEventType.RUN_CANCELED:
                self.reason = event.message or ""

    def _say(self, step: str, text: str, at: float | None = None) -> None:
        clock = time.strftime("%H:%M:%S", time.localtime(at))
        with suppress(BrokenPipeError):  # a reader that has gone, as in `| head`, does not end the run
            for line in text.splitlines():
                print(f"{clock}  {step:<{self.width}}  {line}", flush=True)


def _brief(error: SerializableErrorInfo | None) -> str:
    """The error of the step's own code, in one or a few lines: `ValueError: what is wrong`.

    Dagster wraps it, often more than once: in the failure of the step, of an input's loading, of the last retry.
    """
    if error is None:
        return "failed"
    while error.cause is not None and (error.cls_name or "").startswith(("Dagster", "RetryRequested")):
        error = error.cause
    return re.sub(r"^[\w.]*\.(?=\w+(:|$))", "", error.message).strip().removeprefix("Failure: ")
