"""A server of the API for a test, and a plain HTTP client of it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import httpx2
import pytest

from .gangs import cluster
from .pod_driver import PodDriver
from .server import Server, api_server


@pytest.fixture
def server() -> Iterator[Server]:
    """With the namespace `lab`."""
    with api_server() as server:
        server.storage.create("Namespace", "", {"metadata": {"name": "lab"}})
        yield server


@pytest.fixture
def http(server: Server) -> Iterator[httpx2.Client]:
    headers = {"Authorization": f"Bearer {server.token}"}
    # No certificates to load: there is no TLS here.
    with httpx2.Client(base_url=server.url, headers=headers, timeout=60, trust_env=False, verify=False) as client:
        yield client


@pytest.fixture
def driver() -> Iterator[PodDriver]:
    with cluster() as started:
        yield started


@pytest.fixture
def ns(driver: PodDriver) -> Iterator[str]:
    name = f"t-{uuid.uuid4().hex[:8]}"
    driver.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    driver.api.delete("Namespace", "", name)
