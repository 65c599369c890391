"""An iteration's run in MLflow, found by its tags, and logging to it, of which nothing is there twice: MLflow's client
repeats a request whose answer was lost, so what it made twice is removed."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlsplit

from pipeline.core import layout
from pipeline.core.iteration import Iteration
from pipeline.core.storage import Store
from pipeline.registry.tracking import be_quiet, ensure_database
from pipeline.training.journal import LoggedRow, read_journal

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Run


BATCH = 1000
"""Metrics that one request takes; parameters and tags are a tenth of it."""
STARTED, DIGEST = "training.started", "model.digest"
"""Tags that tell runs of one iteration apart: when its training began, and what it left."""
ANSWERS_WITHIN_S = 2.0
"""A server that takes no connection within this is away."""
DATASET_DIGEST = 36
"""Characters of a dataset's digest that MLflow keeps; the whole one is in its source."""


class MlflowAddresses(NamedTuple):
    """Where runs and versions are. `registry`: of the versions, where they are elsewhere than the runs. `experiment`:
    of the runs; "" is that of the model's name."""

    tracking: str
    registry: str = ""
    experiment: str = ""

    @property
    def versions(self) -> str:
        return self.registry or self.tracking

    @property
    def remote(self) -> bool:
        """Whether a server has the runs, which knows where its artifacts go; a database does not."""
        return self.tracking.startswith("http")


class RunIdentity(NamedTuple):
    """What MLflow calls a run, and its experiment."""

    experiment_id: str
    run_id: str


def mlflow_client(tracking_uri: str, registry_uri: str = "") -> MlflowClient:
    """A quiet client: MLflow otherwise reports home, draws progress bars and narrates its migrations."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.environ["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"
    os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
    from mlflow import MlflowClient

    be_quiet()
    for uri in (tracking_uri, registry_uri):
        ensure_database(uri)
    return MlflowClient(tracking_uri=tracking_uri, registry_uri=registry_uri or tracking_uri)


def reach(address: str) -> None:
    """Raises OSError for a server that takes no connection: MLflow itself would go on trying for minutes."""
    parts = urlsplit(address)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    socket.create_connection((parts.hostname or "", port), timeout=ANSWERS_WITHIN_S).close()


def open_run(
    client: MlflowClient, addresses: MlflowAddresses, store: Store, iteration: Iteration, digest: str = ""
) -> Run:
    """The run of the iteration's training, begun if it is not there. `digest`: of the model that it left, if it has.

    Raises ValueError for an experiment whose artifacts cannot have its name below the data root.
    """
    identifying = {"iteration": iteration.id, STARTED: training_started(store, iteration), DIGEST: digest}
    wanted = {name: value for name, value in identifying.items() if value}
    experiment = _experiment(client, addresses, store, iteration.model_name)

    def ours() -> list[Run]:
        by_start = ["attribute.start_time"]
        runs = client.search_runs([experiment], f"tags.iteration = '{iteration.id}'", order_by=by_start)
        return [run for run in runs if _is_of(run, wanted)]

    if not ours():
        client.create_run(experiment, tags=wanted, run_name=f"{iteration.number}-{iteration.id}")
    run, *others = ours()
    for other in others:
        if all(other.data.tags.get(tag) == run.data.tags.get(tag) for tag in (STARTED, DIGEST)):
            client.delete_run(other.info.run_id)
    log_tags(client, run, wanted)
    return run


def identity(run: Run) -> RunIdentity:
    return RunIdentity(run.info.experiment_id, run.info.run_id)


def training_started(store: Store, iteration: Iteration) -> str:
    """When the first attempt of the iteration's training began, in UTC; "" before there is one."""
    events = read_journal(store.path(iteration.path(layout.TRAINING), layout.JOURNAL_FILE))
    return datetime.fromtimestamp(events[0].at, UTC).isoformat(timespec="milliseconds") if events else ""


def metrics_file(store: Store, iteration: Iteration) -> Path:
    return store.path(iteration.path(layout.TRAINING), layout.METRICS_FILE)


def points(rows: Iterable[LoggedRow]) -> Iterator[Metric]:
    """A point for each value, at the time at which it was measured: logged again it is the same point, kept once."""
    from mlflow.entities import Metric

    for row in rows:
        for name, value in row.metrics.items():
            yield Metric(name, value, int(row.at * 1000), row.step)


def log_points(client: MlflowClient, run: Run, logged: Iterable[Metric]) -> None:
    waiting = list(logged)
    for first in range(0, len(waiting), BATCH):
        client.log_batch(run.info.run_id, metrics=waiting[first : first + BATCH])


def log_params(client: MlflowClient, run: Run, params: Mapping[str, Any]) -> None:
    """Parameters never change once logged, so only those that are not there yet."""
    from mlflow.entities import Param

    new = [Param(key, str(value)) for key, value in params.items() if key not in run.data.params]
    for first in range(0, len(new), BATCH // 10):
        client.log_batch(run.info.run_id, params=new[first : first + BATCH // 10])


def log_tags(client: MlflowClient, run: Run, tags: Mapping[str, str]) -> None:
    from mlflow.entities import RunTag

    new = [RunTag(key, value) for key, value in tags.items() if run.data.tags.get(key) != value]
    for first in range(0, len(new), BATCH // 10):
        client.log_batch(run.info.run_id, tags=new[first : first + BATCH // 10])


def log_dataset(client: MlflowClient, run: Run, store: Store, iteration: Iteration) -> None:
    """The governed rows that the iteration learns from, as an input of the run: snapshot and digest name them."""
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


def upload(client: MlflowClient, run: Run, files: Mapping[str, Path]) -> None:
    """Put files where the run's artifacts have these paths, in this order; one that is there whole stays.

    Raises ValueError for a file that has another name than its path.
    """
    folders = sorted({path.rpartition("/")[0] for path in files})
    there = {
        each.path: each.file_size
        for folder in folders
        for each in client.list_artifacts(run.info.run_id, folder or None)
        if not each.is_dir
    }
    for path, file in files.items():
        folder, _, name = path.rpartition("/")
        if file.name != name:
            raise ValueError(f"{file} would be {path} in MLflow. Give it that name.")
        if there.get(path) != file.stat().st_size:
            client.log_artifact(run.info.run_id, str(file), folder or None)


@contextmanager
def allowed_to_exist() -> Generator[None]:
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def _is_of(run: Run, wanted: Mapping[str, str]) -> bool:
    """A run that names no training is of the one that left its model; one that names no model may yet get it."""
    tags = run.data.tags
    if DIGEST not in wanted:
        return tags.get(STARTED) == wanted.get(STARTED)
    return all(tags.get(name, value) == value for name, value in wanted.items())


def _experiment(client: MlflowClient, addresses: MlflowAddresses, store: Store, model_name: str) -> str:
    name = addresses.experiment or model_name

    made = client.get_experiment_by_name(name)
    if made is None and addresses.remote:
        with allowed_to_exist():  # another process may be first, or the client itself, where an answer was lost
            client.create_experiment(name)
        made = client.get_experiment_by_name(name)
    if made is not None:
        return made.experiment_id
    if not re.fullmatch(r"[^/\\]+", name) or name in (".", ".."):
        raise ValueError(
            f"MLFLOW_EXPERIMENT_NAME is {name!r}, and without a tracking server it names a folder below the data root: "
            "leave the slashes out, or set MLFLOW_TRACKING_URI to a server."
        )
    artifacts = store.path(layout.MLFLOW, name)
    artifacts.mkdir(parents=True, exist_ok=True)
    return client.create_experiment(name, artifact_location=artifacts.as_uri())


def run_page(tracking_uri: str, run: RunIdentity) -> str:
    """ "" where the tracking server is no web server."""
    if not _is_web(tracking_uri):
        return ""
    return f"{tracking_uri.rstrip('/')}/#/experiments/{run.experiment_id}/runs/{run.run_id}"


def version_page(registry_uri: str, name: str, version: int) -> str:
    """ "" where the registry is no web server."""
    if not _is_web(registry_uri):
        return ""
    return f"{registry_uri.rstrip('/')}/#/models/{quote(name, safe='')}/versions/{version}"


def _is_web(uri: str) -> bool:
    return uri.startswith(("http://", "https://"))


@contextmanager
def answered(address: str) -> Generator[None]:
    """Raises ConnectionError with what to do where the server at this address gives no answer in the block."""
    try:
        yield
    except Exception as error:  # the boundary of MLflow's client, and of the HTTP library below it
        if not is_unanswered(error):
            raise
        raise ConnectionError(
            f"MLflow at {address} gives no answer ({type(error).__name__}). See to it that it runs, and launch the "
            "same again: what is on record stays, and nothing is put there twice."
        ) from error


def is_unanswered(error: Exception) -> bool:
    """MLflow raises the server's own answers as RestException, and for none the class above it, without a code."""
    from mlflow.exceptions import MlflowException, RestException
    from requests.exceptions import RequestException

    if isinstance(error, RequestException):
        return error.response is None
    return (
        isinstance(error, MlflowException)
        and not isinstance(error, RestException)
        and str(error).startswith("API request to ")
    )
