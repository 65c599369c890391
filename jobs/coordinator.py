"""Who takes a run on one machine: the daemon where there is one, else this process, to the end and with an exit code.

It checks the recipe first, and a run that cannot go well is cancelled with the reason.
"""

import fcntl
import logging
import re
import shlex
import shutil
import signal
import sys
import textwrap
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeGuard

import click
import dagster as dg
from dagster import DagsterEvent, DagsterEventType
from dagster._core.events import EngineEventData
from dagster._core.run_coordinator import QueuedRunCoordinator, SubmitRunContext
from dagster._core.storage.dagster_run import ACTIVE_RUN_STATUSES
from dagster_shared.error import SerializableErrorInfo

from assets.environment import DATA_ROOT_TAG, ITERATION_TAG, ONE_AT_A_TIME, choice_tag
from assets.naming import LABELLING, LOOP, ROLLOUT
from jobs.launcher import launcher_of, reap_dead_runs, reap_if_dead
from jobs.recipe_choice import typed

TAKES_RUNS = "QUEUED_RUN_COORDINATOR"
"""The type of the daemon that takes queued runs."""
HEARTBEAT_S = 60
"""A daemon writes a heartbeat every 30 s; with two of them missing it counts as gone."""
LEAVES_S = 60
"""What the worker of a run that has ended gets to leave."""
POLL_S = 0.5
JOBS = (LOOP, LABELLING, ROLLOUT)
"""Whose recipe is checked before their run is started."""
FAULTS = 10
"""How many looks at a run may fail, on a busy database for one, before it counts as lost from sight."""


class FollowingRunCoordinator(QueuedRunCoordinator):
    """Queues a run when a daemon is there to take it, else launches it; for `dagster job launch`, follows it."""

    def submit_run(self, context: SubmitRunContext) -> dg.DagsterRun:
        instance, run = self._instance, context.dagster_run
        command = click.get_current_context(silent=True)
        refusal = ""
        if is_launch_command(command) and run.job_name in JOBS:
            refusal = launch_refusal(run)
        refusal = refusal or self._start(context)
        if refusal:
            instance.report_run_canceled(run, f"The run was not started. {refusal}")
        # Neither exits here: to the instance, whatever is raised in this method is a failure of the run.
        if is_launch_command(command) and refusal:
            click.echo(f"Error: {refusal}", err=True)
            command.call_on_close(lambda: sys.exit(1))
        elif is_launch_command(command):
            follower = RunFollower(self, instance, context.workspace, run)
            follower.follow()
            command.call_on_close(lambda: sys.exit(follower.conclude()))
        return instance.get_run_by_id(run.run_id) or run

    def _start(self, context: SubmitRunContext) -> str:
        """Start the run, or queue it for the daemon, which starts one run at a time on a data root (`dagster.yaml`).
        Without a daemon no process would take it from a queue: why it is not started, or ""."""
        instance, run = self._instance, context.dagster_run
        reap_dead_runs(instance)
        if daemon_is_alive(instance):
            super().submit_run(context)
            return ""
        with _one_launcher(launcher_of(instance).directory):
            if other := _in_the_way(instance, run):
                where = run.tags.get(DATA_ROOT_TAG, "the same data root")
                busy = f"Run {other.run_id} of {other.job_name} is at work on {where}."
                return f"{busy} Launch again when it has ended: {typed_command()}"
            instance.launch_run(run.run_id, context.workspace)
        return ""

    def dispose(self) -> None:
        command = click.get_current_context(silent=True)
        if command and command.command_path.endswith("daemon run"):
            self._instance.wipe_daemon_heartbeats()  # a daemon that was stopped is gone now, not in a minute


def is_launch_command(command: click.Context | None) -> TypeGuard[click.Context]:
    """Whether this process is `dagster job launch`, typed by somebody who waits for the run."""
    return command is not None and command.command_path.endswith("job launch")


def typed_command(*more: str) -> str:
    """What was typed, to be pasted again, with further options."""
    return typed(shlex.join(["dagster", *sys.argv[1:], *more]))


def launch_refusal(run: dg.DagsterRun) -> str:
    """What speaks against a launch that a person waits for, one line each: mistakes of the recipe; of a launch from
    `traces` on also model, disk, source, environment, suites and packages; of another one that the iteration was begun
    with another recipe. "" where nothing does."""
    from assets.preflight import check  # seconds of imports
    from assets.resources import Deployment
    from jobs.rollout import frozen

    deployment = Deployment(**choice_tag(run.tags)._asdict())
    try:
        deployment.recipe()
        steps = run.step_keys_to_execute
        if run.job_name in (LOOP, ROLLOUT) and (kept := frozen(deployment)):
            return kept
        if run.job_name != LOOP:
            return ""
        if steps is None or any(step.endswith("traces") for step in steps):
            faults = [line.text for line in check(deployment) if not line.fine]
            return "\n".join([*faults, f"Nothing was launched. Check again: {typed('pt validate')}"]) if faults else ""
        id = run.tags.get(ITERATION_TAG)
        deployment.refuse_another_recipe(deployment.iteration(id) if id else deployment.latest())
    except ValueError as error:
        return str(error)
    return ""


@contextmanager
def _one_launcher(directory: Path) -> Generator[None]:
    """Between the look for another run and the start of this one, no other command starts one."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _in_the_way(instance: dg.DagsterInstance, run: dg.DagsterRun) -> dg.DagsterRun | None:
    """A run at work on the same records."""
    if ONE_AT_A_TIME not in run.tags:
        return None
    alike = dg.RunsFilter(tags={ONE_AT_A_TIME: run.tags[ONE_AT_A_TIME]}, statuses=ACTIVE_RUN_STATUSES)
    others = (other for other in instance.get_runs(alike) if other.run_id != run.run_id)
    return next((other for other in others if launcher_of(instance).is_alive(other.run_id)), None)


def daemon_is_alive(instance: dg.DagsterInstance) -> bool:
    heartbeat = instance.get_daemon_heartbeats().get(TAKES_RUNS)
    # One from the future was written before the clock was set back; a living daemon writes another.
    return heartbeat is not None and abs(time.time() - heartbeat.timestamp) < HEARTBEAT_S


class RunFollower:
    """Stays with a run until it has ended; SIGINT or SIGTERM cancels it, a second one kills it.

    A canceled run is never killed by the clock: its trainer has `training.grace_s` for a last checkpoint, however long
    that is, and ends after it by itself.

    `workspace`: where a run is launched from that was left in a queue without a daemon; this project's launcher, which
    starts a worker of its own, needs none.
    """

    def __init__(
        self, coordinator: FollowingRunCoordinator, instance: dg.DagsterInstance, workspace: Any, run: dg.DagsterRun
    ):
        self.coordinator, self.instance, self.workspace, self.run = coordinator, instance, workspace, run
        self.launcher = launcher_of(instance)
        self.lines = RunLines(run)
        self.cursor: str | None = None
        self.began = self.ended = time.monotonic()
        self.signals: list[int] = []
        self.canceled = False
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
        """Says how the run ended, where its page is and what to type next. Returns the exit status: 0 for success, 1
        for failure, 130 for a Ctrl-C. 2 is Dagster's own, where there was no run to follow."""
        from jobs.status import after_launch  # seconds of imports

        run, code, again = self.run, int(not self.run.is_success), ""
        if run.status is dg.DagsterRunStatus.CANCELED and self.signals:
            code, again = 128 + self.signals[0], typed_command()
        elif code:
            for step, error in self.lines.untold.items() if self.lines.failed else [("run", self.lines.reason)]:
                self.lines.write(step, error)
            if self.launcher.workers.find(run.run_id):
                self.lines.write("run", f"output of its worker: {self.launcher.output(run.run_id)}")
            # A stage reads what the stages before it published, so a run can begin at the one that failed.
            failed = [step for step in self.lines.failed if step in (run.step_keys_to_execute or [])]
            selects = not failed or {"-o", "--op-selection"} & {*sys.argv}
            again = typed_command() if selects else typed_command("-o", f"{failed[0]}*")
        skipped = f"; skipped: {', '.join(self.lines.skipped)}" if self.lines.skipped else ""
        ended = f"{run.status.value} in {self.ended - self.began:.0f} s (run {run.run_id}){skipped}"
        with suppress(BrokenPipeError):
            print(self.lines.replace + "\n".join(after_launch(choice_tag(run.tags), ended, again)), flush=True)
        return code

    def _is_over_or_lost(self) -> bool:
        try:
            return self.is_over()
        except Exception as fault:  # the boundary between watching and running: a fault here is not the run's
            self.faults += 1
            self.lines.reason = f"Lost sight of the run, which may go on: {fault!r}"
            return self.faults > FAULTS

    def is_over(self) -> bool:
        """One look at the run: what is new, whether a signal came, whether somebody still works on it."""
        run = self.instance.get_run_by_id(self.run.run_id)
        if run is None:
            raise ValueError("it was deleted")
        self.run, self.ended = run, time.monotonic()
        news = self.instance.get_records_for_run(run.run_id, self.cursor)
        self.cursor = news.cursor
        for record in news.records:
            self.lines.take(record.event_log_entry)
        if run.is_finished:
            self._await_worker(run)
            self.launcher.kill(run.run_id)
            self.instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
            return True
        if self.signals and not self.canceled:
            self.lines.write("run", "canceling; a second Ctrl-C kills it")
            self.canceled = True
            self.coordinator.cancel_run(run.run_id)
        elif len(self.signals) > 1:
            self.launcher.kill(run.run_id)
        if run.status is not dg.DagsterRunStatus.QUEUED:
            reap_if_dead(self.instance, run.run_id)
        elif not self.canceled and not daemon_is_alive(self.instance):
            self.lines.write("run", "the daemon that was to take it is gone: launched without it")
            self.instance.launch_run(run.run_id, self.workspace)
        return False

    def _await_worker(self, run: dg.DagsterRun) -> None:
        """Until it has left. One of a canceled run may still be within its trainer's grace: Dagster's daemon writes
        CANCELED after three minutes, whatever the worker does."""
        deadline = time.monotonic() + LEAVES_S
        while self.launcher.is_alive(run.run_id) and len(self.signals) < 2:
            if run.status is not dg.DagsterRunStatus.CANCELED and time.monotonic() > deadline:
                return
            time.sleep(0.1)


class RunLines:
    """Prints the events of one run. On a terminal a step leaves one line, with the last that it said; until then its
    newest message is shown on a line that is refreshed. Elsewhere each message is a line."""

    def __init__(self, run: dg.DagsterRun):
        self.run = run
        self.failed: dict[str, str] = {}
        """The errors of the steps that have failed; `untold`: those that no line has told."""
        self.untold: dict[str, str] = {}
        self.skipped: list[str] = []
        self.reason = ""
        self._width = max(map(len, ["run", *(run.step_keys_to_execute or [])]))
        self._step_began: dict[str, float] = {}
        self._newest: dict[str, str] = {}
        self._columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
        self.replace = "\r\x1b[K" if self._columns else ""  # begins each line, in place of the one that is refreshed

    def write(self, step: str, text: str, at: float | None = None, passing: bool = False) -> None:
        """`at`: seconds since the epoch; now where it is not given. `passing`: a terminal's next line replaces it."""
        clock, passing = time.strftime("%H:%M:%S", time.localtime(at)), passing and self._columns > 0
        if passing:
            self._newest[step] = textwrap.shorten(text, max(40, self._columns - self._width - 30), placeholder=" ...")
        with suppress(BrokenPipeError):  # a reader that has gone, as in `| head`, does not end the run
            for line in text.splitlines()[: 1 if passing else None]:
                shown = f"{clock}  {step:<{self._width}}  {line}"
                shown = shown[: self._columns - 1] if passing else f"{shown}\n"
                print(self.replace, shown, sep="", end="", flush=True)

    def take(self, entry: dg.EventLogEntry) -> None:
        """Print an entry of the run's log, if it is for people."""
        event, step = entry.dagster_event, entry.step_key or "run"
        if event is not None:
            for line in self._lines(event, step, entry.timestamp):
                self.write(step, line, entry.timestamp)
        elif not entry.user_message.startswith(("Dependencies for step", "Skipping step")):  # other lines say it all
            self.write(step, entry.user_message, entry.timestamp, passing=entry.level == logging.INFO)

    def _lines(self, event: DagsterEvent, step: str, at: float) -> list[str]:
        took = at - self._step_began.get(step, at)
        match event.event_type:
            case DagsterEventType.RUN_ENQUEUED:
                return ["queued for the daemon"]
            case DagsterEventType.RUN_STARTING:
                return [f"{self.run.job_name} launched (run {self.run.run_id})"]
            case DagsterEventType.STEP_START | DagsterEventType.STEP_RESTARTED:
                self._step_began[step] = at
                self.write(step, "started", at, passing=True)
            case DagsterEventType.STEP_SUCCESS:
                said = self._newest.pop(step, "started")
                return [f"done in {took:.1f} s{'' if said == 'started' else f': {said}'}"]
            case DagsterEventType.STEP_SKIPPED:
                self.skipped.append(step)
            case DagsterEventType.STEP_UP_FOR_RETRY:
                self.failed.pop(step, None)
                return [f"failed after {took:.1f} s, will be retried: {brief(event.step_retry_data.error)}"]
            case DagsterEventType.STEP_FAILURE:
                return [self._failure(event.step_failure_data.error, step, took)]
            case DagsterEventType.ASSET_CHECK_EVALUATION:
                check = event.asset_check_evaluation_data
                detail = check.description or "not passed"
                return [] if check.passed else [f"check {check.check_name} ({check.severity.value}): {detail}"]
            case DagsterEventType.ENGINE_EVENT:
                return self._engine(event, step)
            case DagsterEventType.RUN_FAILURE | DagsterEventType.RUN_CANCELED:
                self.reason = event.message or ""
            case _:
                pass
        return []

    def _failure(self, error: SerializableErrorInfo | None, step: str, took: float) -> str:
        if error is not None and error.cls_name == "DagsterExecutionInterruptedError":
            return f"interrupted after {took:.1f} s"
        self.failed.setdefault(step, brief(error))  # a crash has explained itself before
        self.untold.pop(step, None)
        return f"FAILED after {took:.1f} s: {self.failed[step]}"

    def _engine(self, event: DagsterEvent, step: str) -> list[str]:
        data = event.event_specific_data
        if isinstance(data, EngineEventData) and "pool" in data.metadata:
            return [event.message or ""]
        if isinstance(data, EngineEventData) and data.error:
            self.failed[step] = self.untold[step] = f"{event.message} {brief(data.error)}"
        return []


def brief(error: SerializableErrorInfo | None) -> str:
    """The error of the step's own code, in one or a few lines: `ValueError: what is wrong`.

    Dagster wraps it, often more than once: in the failure of the step, of an input's loading, of the last retry.
    """
    if error is None:
        return "failed"
    while error.cause is not None and (error.cls_name or "").startswith(("Dagster", "RetryRequested")):
        error = error.cause
    return re.sub(r"^[\w.]*\.(?=\w+(:|$))", "", error.message).strip().removeprefix("Failure: ")
