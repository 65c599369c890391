"""A tracking server of MLflow's own for the tests that need one."""

from collections.abc import Iterator

import pytest

from tests.ports import held_port
from tests.servers import mlflow_server


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of one server for the package; each test has a model name of its own."""
    with held_port() as held:
        port = held.getsockname()[1]
        with mlflow_server(tmp_path_factory.mktemp("server"), port):
            yield f"http://127.0.0.1:{port}"
