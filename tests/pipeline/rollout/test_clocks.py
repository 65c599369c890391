"""Clocks that jump, hosts whose clocks are apart, summer time: never a shorter dwell, never a lease held for ever."""

import random
from dataclasses import dataclass

import pytest

from pipeline.rollout.decision import resume
from pipeline.rollout.record import Phase
from tests.pipeline.rollout.conftest import NAME, POLICY, World
from tests.variants import one_and_variants

pytestmark = pytest.mark.slow

DWELL_S = 120.0
LOOK_S = 20.0
STEADY = POLICY.model_copy(
    update={"dwell_s": (DWELL_S, DWELL_S, DWELL_S), "max_look_s": LOOK_S, "lease_s": 1e7, "keep_warm_s": 0.0}
)
DAY_S = 86_400.0
MISSES = {f"{day} by {every:g} s": (day, every) for day in (-DAY_S, DAY_S) for every in (3.0, 15.0)}


@dataclass
class Host:
    """A controller whose clock is `apart` from the right one."""

    world: World
    apart: float = 0.0

    def tick(self) -> None:
        right = self.world.now
        self.world.now = right + self.apart
        self.world.tick()
        self.world.now = right


def observed(world, policy=STEADY) -> float:
    """The time at which the first weight was read back."""
    world.propose("new", policy=policy)
    world.tick_until("observing", every_s=1.0)
    return world.now


def advances_after(world, began: float, tick, every_s: float, limit_s: float = 2 * DWELL_S) -> float:
    """Seconds of the right clock until the weight rises, or the limit."""
    while world.now - began < limit_s and (world.state.phase, world.state.stage) == (Phase.OBSERVING, 0):
        world.now += every_s
        tick()
    return world.now - began


@pytest.mark.parametrize("case", MISSES)
@pytest.mark.parametrize("ticks", [1, 2])
def test_a_clock_that_jumps_and_is_put_right_buys_no_dwell(world, case, ticks):
    by, every_s = MISSES[case]
    began = observed(world)
    host, passed = Host(world), [0]

    def tick():
        passed[0] += 1
        host.apart = by if 2 < passed[0] <= 2 + ticks else 0.0
        host.tick()

    advances_after(world, began, tick, every_s)
    assert_held_by_the_clock(world)
    host.apart = 0.0
    assert advances_after(world, resumed(world), host.tick, every_s) >= DWELL_S, "the stage starts over"


@pytest.mark.parametrize("by", [-DAY_S, DAY_S])
def test_a_clock_that_jumps_for_good_ends_in_a_dwell_or_a_hold(world, by):
    """Set forward it adds one look at the most, as a controller that was away would; set back it asks a person."""
    began = observed(world)
    host = Host(world)

    def tick():
        host.apart = by if world.now - began > 40.0 else 0.0
        host.tick()

    took = advances_after(world, began, tick, 10.0)
    if by > 0:
        assert (took >= DWELL_S - LOOK_S, world.state.phase) == (True, Phase.SHIFTING)
        return
    assert_held_by_the_clock(world)
    world.now += by  # everybody goes by this clock now
    assert advances_after(world, resumed(world), world.tick, 10.0) >= DWELL_S
    assert world.state.phase is Phase.SHIFTING


def assert_held_by_the_clock(world) -> None:
    assert (world.state.phase, world.state.stage, world.weight()) == (Phase.HELD, 0, 5)
    assert world.state.reason.startswith("the clock went back by 86") and "resume" in world.state.reason


def resumed(world) -> float:
    """The time at which its weight was read back again."""
    assert resume(world.store, NAME, "the clock is right", world.now)
    world.tick_until("observing", every_s=1.0)
    return world.now


@pytest.mark.parametrize("apart", one_and_variants([15.0, 5.0, 60.0, DAY_S], 15.0, DAY_S))
@pytest.mark.parametrize("every_s", [4.0, 10.0])
@pytest.mark.parametrize("order", ["in turn", "two and one", "at random"])
def test_two_hosts_clocks_apart_buy_at_most_one_look(world, apart, every_s, order):
    began = observed(world)
    hosts, dice, count = [Host(world), Host(world, apart)], random.Random(1), [0]

    def tick():
        count[0] += 1
        place = {"in turn": count[0] % 2, "two and one": count[0] % 3 == 0, "at random": dice.randrange(2)}[order]
        hosts[place].tick()

    took = advances_after(world, began, tick, every_s)
    if apart > LOOK_S:
        assert world.state.phase is Phase.HELD
    else:
        assert took >= DWELL_S - apart
