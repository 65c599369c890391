import pytest

from pipeline.rollout.controller import Pace, drive
from pipeline.rollout.record import Phase


class Clock:
    """Time that passes only by sleeping, and a little with each reading."""

    def __init__(self):
        self.t, self.slept = 0.0, []

    def now(self):
        self.t += 0.01
        return self.t

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.t += seconds


def run(world, clock, drive_for_s):
    lines = []
    pace = Pace(drive_for_s, now=clock.now, sleep=clock.sleep)
    state = drive(world.ports(), pace, lines.append)
    return state, lines


def test_drive_without_time_takes_one_look_a_run(world):
    clock = Clock()
    assert run(world, clock, 0.0)[0].phase is Phase.IDLE
    world.propose("new")
    state, lines = run(world, clock, 0.0)
    assert (state.phase, state.watch.looks, clock.slept) == (Phase.OBSERVING, 0, [])
    assert [line.split(": ")[1] for line in lines] == [
        "proposed 0% -> gated 0%",
        "gated 0% -> shifting 5%",
        "shifting 5% -> observing 5%",
    ]
    state, lines = run(world, clock, 0.0)
    assert (state.phase, state.watch.looks, clock.slept, lines) == (Phase.OBSERVING, 1, [], [])


def test_drive_through_every_dwell_ends_in_a_promotion(world):
    clock = Clock()
    world.propose("new")
    assert run(world, clock, 1000.0)[0].phase is Phase.PROMOTED
    assert max(clock.slept) <= 60.0
    assert sum(clock.slept) == pytest.approx(400.0, abs=10)
    assert run(world, clock, 1000.0)[1] == []


def test_driving_a_held_rollout_rolls_harm_back(world):
    world.propose("new")
    world.metrics.spoil = lambda look: None
    run(world, Clock(), 400.0)
    world.metrics.spoil, looks = lambda look: look, world.state.watch.looks
    clock = Clock()
    clock.t = 2e4
    assert run(world, clock, 0.0)[0].phase is Phase.HELD
    assert (world.state.watch.looks, clock.slept) == (looks + 1, [])
    world.metrics.canary = {"quality": 0.2}
    clock.t = 3e4
    state, lines = run(world, clock, 0.0)
    assert (state.phase, world.weight(), clock.slept) == (Phase.ROLLED_BACK, 0, [])
    assert "held 5% -> rolling_back 0%: quality fell" in lines[0]
