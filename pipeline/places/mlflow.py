"""MLflow before a run is paid: the champion's version, and what a training and `model_version` will do there."""

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.core.mlflow_server import mlflow_answers, reach
from pipeline.registry.model_artifacts import MODEL
from pipeline.registry.runs import MlflowAddresses, allowed, artifacts_at, experiment_of, mlflow_client
from pipeline.registry.tracking import has_database
from pipeline.registry.versions import version_fault

LARGEST = 64 << 20
"""Bytes that a try sends at the most."""
TAG = "preference-tuning.try"


def try_out(addresses: MlflowAddresses, model_name: str, artefact_bytes: int) -> list[str]:
    """What speaks against a run, one line each. `artefact_bytes`: of the largest file that will be uploaded.

    A server keeps the experiment, and in its trash one run without files. A database is only read."""
    faults: list[str] = []
    if not (has_database(addresses.tracking) and has_database(addresses.versions)):
        return faults
    client = mlflow_client(addresses.tracking, addresses.registry)
    from mlflow.environment_variables import MLFLOW_HTTP_REQUEST_MAX_RETRIES as RETRIES

    before = RETRIES.get_raw()
    RETRIES.set(1)  # seven take minutes
    try:
        with mlflow_answers(addresses.tracking, addresses.versions):
            reach(addresses.tracking)
            reach(addresses.versions)
            experiment = experiment_of(client, addresses, model_name)
            for model in client.search_registered_models(f"name='{model_name}'"):
                if (number := model.aliases.get("champion")) is not None:
                    fault = version_fault(client, addresses, client.get_model_version(model_name, str(number)))
                    faults += [fault] if fault else []
            if experiment is not None and addresses.remote:
                _write(client, addresses, experiment, min(artefact_bytes, LARGEST))
    except Exception as error:  # boundary: MLflow, and whatever store has its artifacts
        faults.append(str(error) or type(error).__name__)
    finally:
        RETRIES.unset() if before is None else RETRIES.set(before)
    return faults


def _write(client: Any, addresses: MlflowAddresses, experiment: str, size: int) -> None:
    """A run, that of an earlier try if there is one, with a file and a version; all are removed again."""
    from mlflow.entities import ViewType

    filter_string = f"tags.`{TAG}` = 'yes'"
    if deleted := client.search_runs([experiment], filter_string, ViewType.DELETED_ONLY, max_results=1):
        client.restore_run(deleted[0].info.run_id)
    run = deleted[0] if deleted else client.create_run(experiment, tags={TAG: "yes"}, run_name="a try before a launch")
    id, uri = run.info.run_id, run.info.artifact_uri
    name, files = f"try-{id}", artifacts_at(uri, addresses)
    try:
        with tempfile.TemporaryDirectory(prefix="mlflow-") as folder:
            with Path(folder, "file").open("wb") as file:
                file.truncate(size)
            files.log_artifact(file.name, MODEL)
        files.list_artifacts(MODEL)
        client.create_registered_model(name)
        client.create_model_version(name, source=f"{uri}/{MODEL}", run_id=id)
    finally:
        with suppress(Exception):  # a store that keeps the file gets the next try's in its place
            files.delete_artifacts(MODEL)
        with allowed("RESOURCE_DOES_NOT_EXIST"):
            client.delete_registered_model(name)
        client.delete_run(id)
