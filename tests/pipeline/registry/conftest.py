"""A tracking server of MLflow's own for the tests that need one, and records in any."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.iteration import Iteration
from pipeline.core.storage import CheckpointRef, ModelRef, Store
from pipeline.registry.runs import MlflowAddresses
from pipeline.registry.versions import RecordedVersion, RunContents, record
from pipeline.rollout.record import JudgedCandidate
from tests.ports import held_port
from tests.servers import mlflow_server

CARD = {"Data": "4 pairs", "Evaluation": "+0.1 (0.05 to 0.15)", "Intended use": "sums", "Limits": "small"}
BARE: dict[str, Any] = {"params": {}, "metrics": [], "plots": {}, "card": CARD, "code_version": "abc"}
PASSED = JudgedCandidate("PASS", "", "bundle")


@pytest.fixture(scope="package")
def server_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="package")
def server(server_folder: Path) -> Iterator[str]:
    """The address of one server for the package; each test has a model name of its own."""
    with held_port() as held:
        port = held.getsockname()[1]
        with mlflow_server(server_folder, port):
            yield f"http://127.0.0.1:{port}"


def put_on_record(
    addresses: MlflowAddresses,
    store: Store,
    iteration: Iteration,
    adapter: ModelRef,
    model: ModelRef,
    judged: JudgedCandidate = PASSED,
    **contents: Any,
) -> RecordedVersion:
    weights = CheckpointRef(adapter=adapter, model=model, step=1)
    return record(addresses, store, iteration, weights, judged, RunContents(**{**BARE, **contents}))
