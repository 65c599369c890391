"""An iteration's run in MLflow, found by its tags, and logging to it, also while it trains. MLflow's client repeats a
request whose answer is lost, so duplicates are removed."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import quote

from pipeline.core import layout
from pipeline.core.iteration import Iteration
from pipeline.core.mlflow_server import mlflow_answers, reach
from pipeline.core.storage import Store
from pipeline.registry.tracking import be_quiet, ensure_database
from pipeline.training.journal import LoggedRow, read_journal, read_rows

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from mlflow.store.artifact.artifact_repo import ArtifactRepository


BATCH = 100
"""Metrics, parameters or tags in one request. Servers before 3.16 fail on more metrics if one was sent before."""
STARTED, DIGEST = "training.started", "model.digest"
"""Tags that distinguish runs of one iteration: the start of its training, and the digest of its model."""
DATASET_DIGEST = 36
"""Characters of a digest that MLflow stores; the whole one is in the source."""
EVERY_S = 2.0
ENDS_WITHIN_S = 5.0
"""The wait for a silent server at the end. A local database is always waited for."""


PAGES = "?workflowType=machine_learning"
"""After the address of an experiment or run: MLflow shows runs and models, not traces."""


class MlflowAddresses(NamedTuple):
    """`registry`: "" where versions are with the runs. `experiment`: "" for the model's name."""

    tracking: str
    registry: str = ""
    experiment: str = ""

    @property
    def versions(self) -> str:
        return self.registry or self.tracking

    @property
    def remote(self) -> bool:
        """Whether a server has the runs; it knows where its artifacts go."""
        return self.tracking.startswith("http")

    @property
    def variable(self) -> str:
        """In front of a command of MLflow's."""
        return f"MLFLOW_TRACKING_URI={shlex.quote(self.tracking)}"


class RunIdentity(NamedTuple):
    experiment_id: str
    run_id: str


def mlflow_client(tracking_uri: str, registry_uri: str = "") -> MlflowClient:
    """A client without telemetry, progress bars and logs of migrations."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.environ["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"
    os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
    from mlflow import MlflowClient

    be_quiet()
    for uri in (tracking_uri, registry_uri):
        ensure_database(uri)
    return MlflowClient(tracking_uri=tracking_uri, registry_uri=registry_uri or tracking_uri)


def artifacts_at(uri: str, addresses: MlflowAddresses) -> ArtifactRepository:
    """What reads and writes the files of a run or a version."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    return get_artifact_repository(uri, addresses.tracking, addresses.versions)


def open_run(
    client: MlflowClient, addresses: MlflowAddresses, store: Store, iteration: Iteration, digest: str = ""
) -> Run:
    """The run of the iteration's training, restored or created if it is not there. `digest`: of the trained model, if
    there is one. Raises ValueError for an experiment that is deleted, or whose name cannot be a folder below the data
    root."""
    from mlflow.entities import ViewType

    identifying = {"iteration": iteration.id, STARTED: training_started(store, iteration), DIGEST: digest}
    wanted = {name: value for name, value in identifying.items() if value}
    experiment = open_experiment(client, addresses, store, iteration.model_name)

    def ours(view: int = ViewType.ACTIVE_ONLY) -> list[Run]:
        by_start = ["attribute.start_time"]
        runs = client.search_runs([experiment], f"tags.iteration = '{iteration.id}'", view, order_by=by_start)
        return [run for run in runs if _is_of(run, wanted)]

    if not ours() and (deleted := ours(ViewType.DELETED_ONLY)):  # a version may be of it
        client.restore_run(deleted[0].info.run_id)
    elif not ours():
        client.create_run(experiment, tags=wanted, run_name=iteration.id)
    run, *others = ours()
    for other in others:
        if all(other.data.tags.get(tag) == run.data.tags.get(tag) for tag in (STARTED, DIGEST)):
            client.delete_run(other.info.run_id)
    log_tags(client, run, wanted)
    return run


def training_started(store: Store, iteration: Iteration) -> str:
    """Start of the first attempt of the iteration's training, in UTC; "" before there is one."""
    events = read_journal(store.path(iteration.path(layout.TRAINING), layout.JOURNAL_FILE))
    return datetime.fromtimestamp(events[0].at, UTC).isoformat(timespec="milliseconds") if events else ""


def metrics_file(store: Store, iteration: Iteration) -> Path:
    return store.path(iteration.path(layout.TRAINING), layout.METRICS_FILE)


def log_points(client: MlflowClient, run: Run, rows: Iterable[LoggedRow]) -> None:
    """A point for each number, at the time of its measurement, so that MLflow keeps a repeated point once. NaN is left
    out: servers before 3.16 fail on a repeated one."""
    from mlflow.entities import Metric

    values = ((row, name, value) for row in rows for name, value in row.metrics.items() if not math.isnan(value))
    _log(client, run, "metrics", [Metric(name, value, int(row.at * 1000), row.step) for row, name, value in values])


def log_params(client: MlflowClient, run: Run, params: Mapping[str, Any]) -> None:
    """Log parameters that the run has not; they never change."""
    from mlflow.entities import Param

    new = [Param(key, str(value)) for key, value in params.items() if key not in run.data.params]
    _log(client, run, "params", new)


def log_tags(client: MlflowClient, run: Run, tags: Mapping[str, str]) -> None:
    from mlflow.entities import RunTag

    _log(client, run, "tags", [RunTag(key, value) for key, value in tags.items()])


def _log(client: MlflowClient, run: Run, kind: str, entities: Sequence[Any]) -> None:
    log_batch: Any = client.log_batch
    for first in range(0, len(entities), BATCH):
        log_batch(run.info.run_id, **{kind: entities[first : first + BATCH]})


def log_dataset(client: MlflowClient, run: Run, store: Store, iteration: Iteration) -> None:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    dataset = iteration.dataset
    source = {"uri": store.within(dataset.uri), "snapshot": dataset.snapshot, "digest": dataset.digest}
    given = Dataset(
        name="governed traces",
        digest=dataset.digest[:DATASET_DIGEST],
        source_type="iceberg",
        source=json.dumps(source),
        profile=json.dumps({"num_rows": dataset.rows}),
    )
    client.log_inputs(run.info.run_id, [DatasetInput(given, [InputTag("mlflow.data.context", "training")])])


@contextmanager
def allowed(code: str) -> Generator[None]:
    """An answer of MLflow, by its code, that is no error."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        if error.error_code != code:
            raise


def _is_of(run: Run, wanted: Mapping[str, str]) -> bool:
    """A run without a tag of a training or of a model may be of the wanted ones."""
    tags = run.data.tags
    if DIGEST not in wanted:
        return tags.get(STARTED) == wanted.get(STARTED)
    return all(tags.get(name, value) == value for name, value in wanted.items())


def experiment_of(client: MlflowClient, addresses: MlflowAddresses, model_name: str) -> str | None:
    """The id of the experiment, on a server created if it is not there. Raises ValueError for a deleted one."""
    name = addresses.experiment or model_name
    experiment = client.get_experiment_by_name(name)
    if experiment is None and addresses.remote:
        with allowed("RESOURCE_ALREADY_EXISTS"):  # another process, or this client, whose answer was lost, made it
            client.create_experiment(name, tags=_shown(model_name))
        experiment = client.get_experiment_by_name(name)
    if experiment is None:
        return None
    if experiment.lifecycle_stage == "deleted":
        command = f"{addresses.variable} mlflow experiments restore --experiment-id {experiment.experiment_id}"
        raise ValueError(f"MLflow's experiment {name!r} is deleted. Restore it: {command}")
    return experiment.experiment_id


def open_experiment(client: MlflowClient, addresses: MlflowAddresses, store: Store, model_name: str) -> str:
    """The id of the experiment, which is created if it is not there."""
    name = addresses.experiment or model_name
    if (there := experiment_of(client, addresses, model_name)) is not None:
        return there
    if not re.fullmatch(r"[^/\\]+", name) or name in (".", ".."):
        raise ValueError(
            f"MLFLOW_EXPERIMENT_NAME is {name!r}, and without a tracking server it names a folder below the data root: "
            "leave the slashes out, or set MLFLOW_TRACKING_URI to a server."
        )
    artifacts = store.path(layout.MLFLOW, name)
    artifacts.mkdir(parents=True, exist_ok=True)
    return client.create_experiment(name, artifacts.as_uri(), _shown(model_name))


def _shown(model_name: str) -> dict[str, str]:
    """Of an experiment: without a kind MLflow opens pages of traces."""
    text = f"Trainings of {model_name}: a run for each iteration."
    return {"mlflow.experimentKind": "custom_model_development", "mlflow.note.content": text}


def run_page(tracking_uri: str, run: RunIdentity) -> str:
    """ "" where the tracking server is no web server."""
    return _page(tracking_uri, f"experiments/{run.experiment_id}/runs/{run.run_id}{PAGES}")


def version_page(registry_uri: str, name: str, version: int) -> str:
    """ "" where the registry is no web server."""
    return _page(registry_uri, f"models/{quote(name, safe='')}/versions/{version}")


def _page(server: str, path: str) -> str:
    return f"{server.rstrip('/')}/#/{path}" if server.startswith(("http://", "https://")) else ""


class MetricsSender(threading.Thread):
    """Sends the metrics of a running training until its `with` block ends; a block that raises marks the run as failed
    until it resumes. The trainer's metrics file is the buffer: an unreachable server neither fails nor delays a
    training, and after a kill the file is sent again; MLflow keeps each point once."""

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
        if not training_started(self._store, self._iteration):
            return
        rows, end = read_rows(metrics_file(self._store, self._iteration), self._at)
        if self._run is not None and not rows:
            return
        self._addresses = addresses = self._addresses or self._find()
        self._client = client = self._client or mlflow_client(addresses.tracking, addresses.registry)
        reach(addresses.tracking)
        with mlflow_answers(addresses.tracking):
            if self._run is None:
                run = open_run(client, addresses, self._store, self._iteration)
                client.update_run(run.info.run_id, "RUNNING")
                log_tags(client, run, self._tags)
                self._run = run
            log_points(client, self._run, rows)
            self._at = end
