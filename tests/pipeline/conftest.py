"""The engines that stages run on: processes of this machine, and a Ray cluster of two nodes on 127.0.0.1."""

import os
import sys
from collections.abc import Iterator

import pytest

from pipeline.recipe import Compute
from tests.variants import one_and_variants

LOCAL = Compute(workers=2)
RAY = Compute(data="ray", workers=2)


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_USAGE_STATS_ENABLED", "0")
        environment.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # workers find this file's functions by name
        result = Cluster()
        for _ in range(2):
            result.add_node(
                num_cpus=1, object_store_memory=100 << 20, include_dashboard=False, include_log_monitor=False
            )
        environment.setenv("RAY_ADDRESS", result.address)
        yield
        ray.shutdown()
        result.shutdown()


@pytest.fixture(params=one_and_variants(["local", "ray"]))
def compute(request: pytest.FixtureRequest) -> Compute:
    if request.param == "local":
        return LOCAL
    request.getfixturevalue("cluster")
    return RAY
