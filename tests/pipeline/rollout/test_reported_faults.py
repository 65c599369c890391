"""The faults that were shown on the rollout as it was, each as what a person would have seen."""

from types import SimpleNamespace

import pytest

from pipeline.core import audit
from pipeline.rollout.drive import Pace, drive
from pipeline.rollout.record import Phase
from tests.pipeline.rollout.conftest import POLICY, World

LONG = POLICY.model_copy(update={"dwell_s": (1e6, 1e6, 1e6)})


def observed(world: World, stage: int = 0, policy=POLICY) -> None:
    world.propose("new", policy=policy)
    for _ in range(60):
        if world.state.phase is Phase.OBSERVING and world.state.stage == stage:
            return
        world.tick(50.0)
    raise AssertionError(world.state)


def moved_by_hand(world: World, weight: int) -> None:
    split = world.router.read()
    assert split is not None
    world.router.apply(split.model_copy(update={"canary_weight": weight, "champion_weight": 100 - weight}))


@pytest.mark.parametrize("stage", [0, 2])
def test_a_canary_that_answers_nothing_goes_to_zero(world, stage):
    observed(world, stage)
    world.metrics.canary = {"graded": 0.0, "error_rate": 1.0}
    for _ in range(3):
        world.tick(10.0)
    assert (world.weight(), world.state.quarantined) == (0, {})


def test_a_persons_zero_at_the_router_is_obeyed(world):
    observed(world)
    moved_by_hand(world, 0)
    for _ in range(12):
        world.tick(50.0)
    assert (world.weight(), world.state.phase) == (0, Phase.HELD)


def test_a_router_that_cannot_be_read_hides_no_harm(world):
    observed(world, policy=LONG)
    world.metrics.canary = {"quality": 0.1}

    def unreachable():
        raise OSError("connection refused")

    world.router.read = unreachable
    for _ in range(4):
        world.tick(50.0)
    del world.router.read
    assert (world.weight(), world.state.phase) == (0, Phase.ROLLING_BACK)


def test_a_router_that_stays_unreadable_holds(world):
    observed(world, policy=LONG)

    def unreachable():
        raise OSError("connection refused")

    world.router.read = unreachable
    for _ in range(3):
        world.tick(50.0)
    assert world.state.phase is Phase.HELD


def test_a_rollback_that_is_not_obeyed_is_counted(world):
    observed(world)
    world.metrics.canary = {"quality": 0.1}
    world.router.apply = lambda split: None
    for _ in range(10):
        world.tick(50.0)
    assert (world.state.phase, world.weight()) == (Phase.ROLLING_BACK, 5)
    assert world.state.misses == 3, "it is tried on, and the log does not grow by that"


def test_a_held_rollout_is_watched_by_a_run_that_drives(world):
    observed(world, policy=LONG)
    world.metrics.spoil = lambda look: None
    world.tick_until("held")
    world.metrics.spoil = lambda look: look
    clock = SimpleNamespace(t=world.now)

    def sleep(seconds):
        clock.t += seconds
        if clock.t > world.now + 200:
            world.metrics.canary = {"quality": 0.2}

    drive(world.ports(), Pace(600.0, now=lambda: clock.t, sleep=sleep), lambda line: None)
    assert (world.weight(), world.state.phase) == (0, Phase.ROLLED_BACK)


def test_a_clock_that_jumped_a_day_buys_no_dwell(world):
    observed(world, policy=POLICY.model_copy(update={"dwell_s": (3600.0, 3600.0, 3600.0)}))
    world.tick(60.0)
    world.tick(86_400.0)
    assert (world.state.phase, world.weight()) == (Phase.OBSERVING, 5)


def test_a_clock_that_was_put_right_hides_no_harm(world):
    observed(world, policy=LONG)
    world.tick(86_400.0)
    world.metrics.canary = {"quality": 0.1}
    world.tick(-86_400.0)
    for _ in range(3):
        world.tick(60.0)
    assert world.weight() == 0


def test_a_week_without_a_controller_is_no_week_of_dwell(world):
    observed(world, policy=POLICY.model_copy(update={"dwell_s": (604_800.0, 604_800.0, 604_800.0)}))
    world.tick(604_800.0)
    assert (world.state.phase, world.weight()) == (Phase.OBSERVING, 5)


def test_sixty_answers_do_not_raise_the_weight(world):
    world.metrics.requests = 1220
    observed(world)
    world.tick(200.0)
    assert (world.state.phase, world.weight()) == (Phase.OBSERVING, 5)


def test_a_rollback_is_in_the_audit_log(world):
    world.metrics.canary = {"quality": 0.2}
    world.propose("bad")
    world.tick_until("rolled_back")
    world.tick(1.0)
    assert [e.detail["digest"] for e in audit.entries(world.store) if e.kind == "rollback"] == ["bad"]


def test_a_held_rollout_makes_way_for_a_newer_candidate(world):
    observed(world)
    world.metrics.spoil = lambda look: None
    world.tick_until("held")
    world.metrics.spoil = lambda look: look
    assert not world.propose("newer", number=2, data="later").refused
    assert world.tick_until("promoted").champion.model.digest == "newer"
