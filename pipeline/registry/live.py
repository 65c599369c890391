"""Sends the metrics of a running training to MLflow. The trainer's metrics file is the buffer: an unreachable server
neither fails nor delays a training, and after a kill the file is sent again; MLflow keeps each point once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Self

from pipeline.core.iteration import Iteration
from pipeline.core.mlflow_server import mlflow_answers, reach
from pipeline.core.storage import Store
from pipeline.registry import runs
from pipeline.registry.runs import MlflowAddresses, RunIdentity, mlflow_client
from pipeline.training.journal import read_rows

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

EVERY_S = 2.0
ENDS_WITHIN_S = 5.0
"""The wait for a silent server at the end. A local database is always waited for."""


class MetricsSender(threading.Thread):
    """Sends until its `with` block ends. A block that raises marks the run as failed until it resumes."""

    def __init__(
        self,
        addresses: Callable[[], MlflowAddresses],
        store: Store,
        iteration: Iteration,
        tags: Mapping[str, str],
        log: Callable[[str], None],
    ) -> None:
        """`addresses` is called when there is something to send; where it raises, MLflow is unreachable. `log` gets one
        line then."""
        super().__init__(name="live metrics", daemon=True)
        self._find, self._store, self._iteration, self._tags, self._log = addresses, store, iteration, tags, log
        self._over = threading.Event()
        self._failed = self._missed = False
        self._at = 0
        self._addresses: MlflowAddresses | None = None
        self._client: MlflowClient | None = None
        self._run: Run | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._failed = kind is not None
        self._over.set()
        own = self._addresses is not None and not self._addresses.remote
        self.join(None if own else ENDS_WITHIN_S)

    @property
    def identity(self) -> RunIdentity | None:
        """None until something was sent."""
        run = self._run
        return None if run is None else RunIdentity(run.info.experiment_id, run.info.run_id)

    def run(self) -> None:
        over = False
        while not over:
            over = self._over.wait(EVERY_S)
            try:
                self._send()
                if over and self._failed and self._client is not None and self._run is not None:
                    self._client.set_terminated(self._run.info.run_id, "FAILED")
            except Exception as error:  # boundary: MLflow; whatever it raises, the training goes on
                if not self._missed:
                    self._log(
                        "MLflow does not take the metrics of the training, which goes on; they are sent when it does, "
                        f"at the latest when the iteration is put on record. {error}"
                    )
                self._missed = True

    def _send(self) -> None:
        if not runs.training_started(self._store, self._iteration):
            return
        rows, end = read_rows(runs.metrics_file(self._store, self._iteration), self._at)
        if self._run is not None and not rows:
            return
        self._addresses = addresses = self._addresses or self._find()
        self._client = client = self._client or mlflow_client(addresses.tracking, addresses.registry)
        reach(addresses.tracking)
        with mlflow_answers(addresses.tracking):
            if self._run is None:
                run = runs.open_run(client, addresses, self._store, self._iteration)
                client.update_run(run.info.run_id, "RUNNING")
                runs.log_tags(client, run, self._tags)
                self._run = run
            runs.log_points(client, self._run, rows)
            self._at = end
