import pytest

from pipeline.rollout.controller import LOADS_EVERY_S, drive, pause_s
from pipeline.rollout.record import Phase, RolloutState, StageWatch
from tests.pipeline.rollout.conftest import POLICY, slot
from tests.pipeline.rollout.reports import proposal


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
    state = drive(world.ports(), lines.append, drive_for_s, now=clock.now, sleep=clock.sleep)
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
    clock.t = 2000.0
    world.propose("new")
    assert run(world, clock, 1000.0)[0].phase is Phase.PROMOTED
    assert [round(seconds) for seconds in clock.slept] == [60, 40, 60, 60, 60, 20, 60, 40]
    assert run(world, clock, 1000.0)[1] == []


def test_a_dwell_of_0_s_ends_in_a_run_without_time(world):
    clock = Clock()
    world.propose("new", policy=POLICY.model_copy(update={"dwell_s": (0.0, 0.0, 0.0)}))
    assert run(world, clock, 0.0)[0].phase is Phase.PROMOTED
    assert clock.slept == []


def test_a_slot_that_loads_is_asked_each_second(world):
    clock = Clock()
    slot(world, reason="loads")
    world.propose("new")
    assert run(world, clock, 3.0)[0].phase is Phase.GATED
    assert clock.slept == [LOADS_EVERY_S] * 2


@pytest.mark.parametrize(
    ("phase", "dwell_s", "begun", "pause"),
    [
        (Phase.GATED, 0.0, True, 1.0),
        (Phase.APPROVED, 0.0, False, 1.0),
        (Phase.OBSERVING, 0.0, True, 60.0),
        (Phase.OBSERVING, 70.0, False, 30.0),
        (Phase.OBSERVING, 99.5, False, 0.5),
        (Phase.OBSERVING, 100.0, False, 60.0),  # it waits for requests
        (Phase.OBSERVING, 100.0, True, 0.0),  # another controller watched it
        (Phase.HELD, 70.0, True, 60.0),
    ],
)
def test_how_long_until_the_next_tick(phase, dwell_s, begun, pause):
    watch = StageWatch(covered_s=dwell_s, judged_until=dwell_s)
    opened = proposal().model_copy(update={"policy": POLICY})
    state = RolloutState(phase=phase, proposal=opened, watch=watch)
    assert pause_s(state, 60.0, begun) == pause
    assert pause_s(state, 0.25, begun) == min(pause, 0.25)


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
