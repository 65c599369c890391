"""What a run does, as lines for a terminal: time, step, and one line for each thing that a person wants to know."""

import re
import time
from contextlib import suppress

import dagster as dg
from dagster import DagsterEvent, DagsterEventType
from dagster._core.events import EngineEventData
from dagster_shared.error import SerializableErrorInfo


class RunLines:
    """Prints the events of one run. `failed`: the errors of the steps that have failed, as they were told."""

    def __init__(self, run: dg.DagsterRun):
        self.run = run
        self.failed: dict[str, str] = {}
        self.reason = ""
        self._width = max(map(len, ["run", *(run.step_keys_to_execute or [])]))
        self._step_began: dict[str, float] = {}

    def write(self, step: str, text: str, at: float | None = None) -> None:
        """`at`: seconds since the epoch; now where it is not given."""
        clock = time.strftime("%H:%M:%S", time.localtime(at))
        with suppress(BrokenPipeError):  # a reader that has gone, as in `| head`, does not end the run
            for line in text.splitlines():
                print(f"{clock}  {step:<{self._width}}  {line}", flush=True)

    def take(self, entry: dg.EventLogEntry) -> None:
        """Print an entry of the run's log, if it is for people."""
        event, step = entry.dagster_event, entry.step_key or "run"
        if event is not None:
            for line in self._lines(event, step, entry.timestamp):
                self.write(step, line, entry.timestamp)
        elif not entry.user_message.startswith("Dependencies for step"):  # the failure above it says it all
            self.write(step, entry.user_message, entry.timestamp)

    def _lines(self, event: DagsterEvent, step: str, at: float) -> list[str]:
        took = at - self._step_began.get(step, at)
        match event.event_type:
            case DagsterEventType.RUN_ENQUEUED:
                return ["queued for the daemon"]
            case DagsterEventType.RUN_STARTING:
                return [f"{self.run.job_name} launched (run {self.run.run_id})"]
            case DagsterEventType.STEP_START | DagsterEventType.STEP_RESTARTED:
                self._step_began[step] = at
                return ["started"]
            case DagsterEventType.STEP_SUCCESS:
                return [f"done in {took:.1f} s"]
            case DagsterEventType.STEP_SKIPPED:
                return ["skipped"]
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
        return f"FAILED after {took:.1f} s: {self.failed[step]}"

    def _engine(self, event: DagsterEvent, step: str) -> list[str]:
        data = event.event_specific_data
        if isinstance(data, EngineEventData) and "pool" in data.metadata:
            return [event.message or ""]
        if isinstance(data, EngineEventData) and data.error:
            self.failed[step] = f"{event.message} {brief(data.error)}"
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
