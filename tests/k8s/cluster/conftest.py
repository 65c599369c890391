"""A server of the API for a test, and a plain HTTP client of it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import suppress

import httpx2
import pytest

from .gangs import KUBECONFIG, cluster
from .objects import place
from .pod_driver import POOL, PodDriver
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
    """A namespace, and the driver's nodes of that pool. The queue and the nodes that a test makes go with it."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    driver.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    driver.pool = name
    if KUBECONFIG:  # there a pod on a node that does not exist is collected
        driver.home = f"{name}-home"
        driver.node(driver.home, {"cpu": "64", "memory": "256Gi"})
        driver.api.patch("Node", "", driver.home, {"spec": {"unschedulable": True}})
    yield name
    for pod in driver.pods(name):  # no kubelet says that they have ended
        driver.api.delete("Pod", *place(pod), grace_s=0)
    for node in driver.api.list("Node", labels=f"{POOL}={name}")[0]:
        driver.api.delete("Node", *place(node))
    for kind in ("ClusterQueue", "ResourceFlavor"):
        with suppress(httpx2.HTTPStatusError):  # none of these, or no Kueue
            driver.api.delete(kind, "", name)
    driver.api.delete("Namespace", "", name)
