import pytest

from pipeline.core.storage import Store
from pipeline.rollout.fold import fold, read_state
from pipeline.rollout.record import Phase, RolloutEvent, RolloutStep, append, read_events, step_event
from tests.pipeline.rollout.acts import decided, slot
from tests.pipeline.rollout.conftest import NAME


def test_record_keeps_the_first_event_of_an_epoch(world):
    world.propose("new")
    state = world.state
    won = [
        append(world.store, NAME, state, step_event(state, 1.0, RolloutStep(phase, "")))
        for phase in (Phase.GATED, Phase.ROLLING_BACK)
    ]
    assert won == [True, False]
    assert world.state.phase is Phase.GATED


def test_the_log_refuses_steps_that_are_not_legal_and_gaps(world):
    world.propose("new")
    state = world.state
    for phase, stage in ((Phase.PROMOTED, 0), (Phase.OBSERVING, 0), (Phase.GATED, 0)):
        event = RolloutEvent(
            epoch=state.epoch + 1 + (phase is Phase.GATED), at=0, rollout=state.rollout, phase=phase, stage=stage
        )
        with pytest.raises(AssertionError):
            append(world.store, NAME, state, event)
    world.tick_until("observing")
    with pytest.raises(AssertionError, match="skipped"):
        event = RolloutEvent(epoch=world.state.epoch + 1, at=0, rollout="r", phase=Phase.SHIFTING, stage=2)
        append(world.store, NAME, world.state, event)
    world.store.path("rollout", NAME, "events", "000002.json").unlink()
    with pytest.raises(ValueError, match="Restore"):
        read_state(world.store, NAME)


def test_an_event_says_nothing_that_was_not_written():
    event = RolloutEvent(epoch=1, at=0.0, rollout="r", phase=Phase.OBSERVING)
    assert not any((event.missed, event.unready, event.raised, event.clock_went_back, event.quarantine, event.by))


def test_each_stage_begins_its_dwell_anew(world):
    world.propose("new")
    stages = []
    for _ in range(30):
        if world.state.phase in (Phase.SHIFTING, Phase.OBSERVING) and world.state.stage not in stages:
            stages.append(world.state.stage)
            assert (world.state.covered_s, world.state.judged_until, world.state.raised) == (0.0, 0.0, 0)
        world.tick(50.0)
    assert stages == [0, 1, 2]


def test_a_resume_before_any_traffic_forgives_the_misses(world):
    world.propose("new")
    world.tick_until("gated")
    slot(world, replicas=0)
    for _ in range(3):
        world.tick(1.0)
    assert world.state.misses == 3
    decided(world, "pause")
    assert decided(world, "resume").state.phase is Phase.GATED
    assert (world.state.misses, world.state.unready) == (0, 0)


def test_looks_without_a_server_count_in_a_row(world):
    world.propose("new")
    world.tick_until("observing")
    events = read_events(world.store, NAME)
    for unready, counted in ((True, 1), (True, 2), (False, 0), (True, 1)):
        before = fold(events)
        step = RolloutStep(Phase.OBSERVING, "", missed=True, unready=unready)
        events.append(step_event(before, before.watched_until + 1.0, step))
        assert fold(events).unready == counted


def test_the_state_is_a_fold_of_the_log(world):
    world.propose("new")
    world.tick_until("promoted")
    assert fold(read_events(world.store, NAME)) == fold(read_events(Store(world.store.root), NAME)) == world.state
    assert world.state.promotions == 1
