"""Sends the metrics of a running training to MLflow. The trainer's metrics file is the buffer: an unreachable server
neither fails nor delays a training, and after a kill the file is sent again; MLflow keeps each point once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from pipeline.core.iteration import Iteration
from pipeline.core.storage import Store
from pipeline.registry import runs
from pipeline.registry.runs import MlflowAddresses, RunIdentity, mlflow_client
from pipeline.training.journal import read_rows

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

EVERY_S = 2.0
ENDS_WITHIN_S = 5.0
"""The wait for a silent server at the end. A local database is always waited for."""


class TrainingRun(NamedTuple):
    """`addresses` is called when there is something to send; where it raises, MLflow is unreachable."""

    addresses: Callable[[], MlflowAddresses]
    store: Store
    iteration: Iteration
    tags: Mapping[str, str]
    is_here: bool = True
    """Whether it runs on this machine, whose load is then logged."""


@contextmanager
def live_metrics(
    training: TrainingRun, log: Callable[[str], None], every_s: float = EVERY_S
) -> Generator[MetricsSender]:
    """Send the training's metrics until the block ends. A block that raises marks the run as failed until it resumes.
    `log` gets one line when MLflow is unreachable."""
    sender = MetricsSender(training, log, every_s)
    sender.start()
    try:
        yield sender
    except BaseException:
        sender.failed = True
        raise
    finally:
        sender.end()


class MetricsSender(threading.Thread):
    def __init__(self, training: TrainingRun, log: Callable[[str], None], every_s: float) -> None:
        super().__init__(name="live metrics", daemon=True)
        self._training, self._log, self._every_s = training, log, every_s
        self._over = threading.Event()
        self._client: MlflowClient | None = None
        self._run: Run | None = None
        self._addresses: MlflowAddresses | None = None
        self._at = 0
        self._missed = False
        self._monitor: SystemMetricsMonitor | None = None
        self.failed = False

    @property
    def identity(self) -> RunIdentity | None:
        """None until something was sent."""
        return runs.identity(self._run) if self._run is not None else None

    def run(self) -> None:
        over = False
        while not over:
            over = self._over.wait(self._every_s)
            try:
                self._send()
                if over and self.failed and self._client is not None and self._run is not None:
                    self._client.set_terminated(self._run.info.run_id, "FAILED")
            except Exception as error:  # boundary: MLflow; whatever it raises, the training goes on
                if not self._missed:
                    self._log(
                        f"MLflow does not take the metrics of the training ({type(error).__name__}): it goes on, and "
                        "they are sent when MLflow answers, at the latest when the iteration is put on record."
                    )
                self._missed = True
        if self._monitor is not None:
            self._monitor.finish()

    def end(self) -> None:
        self._over.set()
        own = self._addresses is not None and self._addresses.tracking.startswith("sqlite:")
        self.join(None if own else ENDS_WITHIN_S)

    def _send(self) -> None:
        store, iteration = self._training.store, self._training.iteration
        if not runs.training_started(store, iteration):
            return
        rows, end = read_rows(runs.metrics_file(store, iteration), self._at)
        if self._run is not None and not rows:
            return
        self._addresses = addresses = self._addresses or self._training.addresses()
        if addresses.remote:
            runs.reach(addresses.tracking)
        self._client = self._client or mlflow_client(addresses.tracking, addresses.registry)
        if self._run is None:
            run = runs.open_run(self._client, addresses, store, iteration)
            if run.info.status != "RUNNING":
                self._client.update_run(run.info.run_id, "RUNNING")
            runs.log_tags(self._client, run, self._training.tags)
            self._run, self._monitor = run, self._start_monitor(run, addresses)
        runs.log_points(self._client, self._run, runs.points(rows))
        self._at = end

    def _start_monitor(self, run: Run, addresses: MlflowAddresses) -> SystemMetricsMonitor | None:
        from mlflow.environment_variables import MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING as switch

        if not (self._training.is_here and switch.get()):
            return None
        from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

        monitor = SystemMetricsMonitor(run.info.run_id, resume_logging=True, tracking_uri=addresses.tracking)
        monitor.start()
        return monitor
