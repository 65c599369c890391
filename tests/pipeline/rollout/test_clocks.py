"""Clocks that jump, hosts whose clocks are apart, summer time: never a shorter dwell, never a lease held for ever."""

import random
import time
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from pipeline.core import audit
from pipeline.core.storage import Store
from pipeline.rollout.decision import resume
from pipeline.rollout.fold import fold
from pipeline.rollout.reconcile import wanted_split
from pipeline.rollout.record import Phase, read_events
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


def test_a_canary_is_watched_on_by_a_clock_that_went_back(world):
    observed(world)
    world.tick(10.0)
    world.tick(-DAY_S)
    assert_held_by_the_clock(world)
    world.metrics.canary = {"quality": 0.1}
    for _ in range(3):
        world.tick(10.0)
    assert (world.state.phase, world.weight()) == (Phase.ROLLED_BACK, 0)


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


@pytest.mark.parametrize("changes", ["2026-03-29T00:30:00", "2026-10-25T00:30:00"])
def test_summer_time_changes_nothing(tmp_path, monkeypatch, changes):
    logs = []
    for zone in ("UTC", "Europe/Berlin"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        world = World(Store(tmp_path / zone))
        world.now = datetime.fromisoformat(changes).replace(tzinfo=UTC).timestamp()
        world.propose("new", policy=STEADY)
        world.tick_until("promoted", every_s=30.0, limit=60)
        logs.append((read_events(world.store, NAME), [entry.model_dump() for entry in audit.entries(world.store)]))
    monkeypatch.undo()
    time.tzset()
    assert logs[0][0] == logs[1][0]
    assert [entry["at"] for entry in logs[0][1]] == [entry["at"] for entry in logs[1][1]]


def test_a_lease_is_never_longer_than_the_policy_says(world):
    """By the clock of the tick that renews it; and each tick renews it, also after a clock that ran ahead."""
    observed(world)
    state, short = world.state, STEADY.model_copy(update={"lease_s": 100.0})
    assert state.proposal is not None
    state = state.model_copy(update={"proposal": state.proposal.model_copy(update={"policy": short})})
    split = wanted_split(state, 1000.0)
    assert (split.expires_at, split.lease_s) == (1100.0, 100.0)
    ahead = Host(world, DAY_S)
    ahead.tick()
    world.tick(10.0)
    read = world.router.read()
    assert read.expires_at == world.now + STEADY.lease_s, "the next tick takes back what the wrong clock promised"


def test_the_log_adds_up_alike_whatever_the_clocks_said(world):
    began = observed(world)
    hosts = [Host(world, apart) for apart in (0.0, 3600.0, -3600.0)]
    for number in range(30):
        world.now = began + 10.0 * number
        hosts[number % 3].tick()
    assert fold(read_events(world.store, NAME)) == world.state
    assert world.state.phase in (Phase.OBSERVING, Phase.HELD)
