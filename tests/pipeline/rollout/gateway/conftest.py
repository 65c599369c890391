from collections.abc import Iterator

import pytest

from tests.pipeline.rollout.gateway.world import World, world


@pytest.fixture(scope="module")
def shared_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("gateway")) as running:
        yield running


@pytest.fixture
def gateway(shared_world: World) -> World:
    """One gateway for the tests of a file: each begins with right answers and half of the users on the canary."""
    shared_world.reset()
    return shared_world
