from pathlib import Path

import pytest

from pipeline.core.storage import Store
from pipeline.rollout.record import read_events
from pipeline.views.rollout import look_points, rollout_over_time
from tests.pipeline.rollout.conftest import World

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(Store(tmp_path))


def test_the_plot_has_a_point_for_each_look(world: World) -> None:
    world.propose("new")
    world.tick_until("promoted")
    points = look_points(read_events(world.store, "demo"))
    assert len(points) == world.state.watch.looks
    assert {point.weight for point in points} == {5, 25, 95}
    assert all(point.canary.low < 0.7 < point.canary.high for point in points)
    assert rollout_over_time(points, "demo version 1").png().startswith(PNG)


def test_the_plot_of_another_rollout_begins_anew(world: World) -> None:
    world.propose("new")
    world.tick_until("promoted")
    before = len(look_points(read_events(world.store, "demo")))
    world.propose("newer", number=2)
    assert look_points(read_events(world.store, "demo")) == []
    world.tick_until("observing")
    world.tick(50.0)
    assert 0 < len(look_points(read_events(world.store, "demo"))) < before


def test_looks_that_graded_nothing_are_drawn_as_a_gap(world: World) -> None:
    world.metrics.canary = {"graded": 0.0}
    world.propose("new")
    world.tick_until("observing")
    world.tick(50.0)
    points = look_points(read_events(world.store, "demo"))
    assert points[0].canary.value is None
    assert rollout_over_time(points, "demo").png().startswith(PNG)
