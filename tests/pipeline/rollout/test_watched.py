"""What a tick sees, obeys and tells: weights moved by hand, clocks, tallies, late grades."""

from pathlib import Path

import pytest

from pipeline.rollout.evidence import LookRequest
from pipeline.rollout.fold import fold, in_rollout, read_tally
from pipeline.rollout.record import Phase, RolloutStep, read_events, step_event
from pipeline.rollout.router import Unsettled
from tests.pipeline.rollout.conftest import NAME, POLICY, World, decided


def test_nothing_is_learned_from_a_running_or_quarantined_canary(world):
    world.metrics.canary = {"quality": 0.2}
    assert set(in_rollout(world.store, NAME)) == set()
    world.propose("bad")
    assert set(in_rollout(world.store, NAME)) == {"bad"}
    world.tick_until("rolled_back")
    world.metrics.canary = {}
    world.propose("good", number=2)
    assert set(in_rollout(world.store, NAME)) == {"bad", "good"}
    world.tick_until("promoted")
    assert set(in_rollout(world.store, NAME)) == {"bad"}


def test_a_weight_that_is_raised_is_put_back(world):
    world.observe(dwell_s=(1e6, 1e6, 1e6))
    for _ in range(4):
        world.set_weight(60)
        world.tick(50.0)
        assert world.weight() == 5, "it is put back each time"
        world.tick(50.0)
    assert (world.state.phase, world.weight()) == (Phase.OBSERVING, 5)
    assert world.state.watch.evidence.canary.requests == 4 * 2000, "nothing is learned from the weight in between"


def test_a_router_that_does_not_follow_is_waited_for(world):
    world.propose("new")
    world.tick_until("gated")
    world.router.apply = lambda split: None
    world.tick(1.0)
    world.tick(1.0)
    assert (world.state.phase, world.state.reason) == (Phase.SHIFTING, "the router reads 0%, not 5%")
    assert (world.state.watch.misses, world.state.watch.evidence.canary.requests) == (1, 0)
    world.metrics.canary = {"error_rate": 0.5}
    world.tick(1.0)
    assert world.state.phase is Phase.ROLLING_BACK, "it may be in force all the same"


@pytest.mark.parametrize("phase", ["shifting", "observing", "held"])
def test_what_a_canary_does_counts_while_no_router_is_read(world, phase):
    world.propose("new")
    world.tick_until("shifting" if phase == "shifting" else "observing")
    if phase == "held":
        decided(world, "pause")
    world.router.read = blinded(OSError("away"))
    world.tick(50.0)
    assert (world.state.phase, world.state.watch.evidence.canary.requests) == (phase, 2000)
    assert (world.state.watch.misses, world.state.watch.covered_s) == (1, 0.0)
    assert "away" in read_events(world.store, NAME)[-1].reason
    epoch = world.state.epoch
    world.tick()
    assert (world.state.epoch, world.state.watch.evidence.canary.requests) == (epoch + 1, 2000), "it was looked at"
    del world.router.read
    world.tick()
    assert world.state.epoch == epoch + 1 + (phase == "shifting")


def test_a_persons_zero_stays_until_a_person_resumes(world):
    world.observe(dwell_s=(1e6, 1e6, 1e6))
    world.set_weight(0)
    for _ in range(3):
        world.tick(POLICY.lease_s)
        assert (world.state.phase, world.state.canary_weight, world.weight()) == (Phase.HELD, 0, 0)
    assert "somebody took requests from the canary" in world.state.reason
    decided(world, "resume")
    assert (world.state.canary_weight, world.weight()) == (5, 5)


def test_a_stage_that_was_lowered_by_hand_starts_over(world):
    """Users of its weight were with the champion meanwhile: they would be in both arms."""
    world.observe(dwell_s=(1e6, 1e6, 1e6))
    world.tick(50.0)
    world.set_weight(2)
    world.tick(50.0)
    assert (world.state.phase, world.state.canary_weight) == (Phase.HELD, 2)
    world.tick(50.0)
    decided(world, "resume")
    assert world.state.watch.evidence.canary.requests == 0
    world.tick(50.0)
    world.tick(50.0)
    assert (world.state.phase, world.state.watch.evidence.canary.requests) == (Phase.OBSERVING, 2000)


def test_a_clock_that_went_back_holds_and_says_so(world):
    world.observe(dwell_s=(1e6, 1e6, 1e6), lease_s=1e6)
    world.tick(50.0)
    world.tick(-POLICY.max_look_s)
    world.tick(POLICY.max_look_s - 86_400.0)
    assert (world.state.phase, world.state.canary_weight, world.state.watch.looks) == (Phase.HELD, 5, 2)
    assert world.state.reason.startswith("the clock went back by 86400 s")
    assert world.state.watch.evidence.canary.requests == 0, "what is looked at from there on may be the same requests"
    world.tick(50.0)
    assert world.state.watch.evidence.canary.requests == 2000, "it is watched on"


def test_a_tally_is_kept_by_look_and_removed_at_the_end(world):
    world.observe(dwell_s=(300.0, 0.0, 0.0))
    for _ in range(3):
        world.tick(50.0)
    folder = world.store.path("rollout", NAME, "tallies")
    assert [p.stem for p in folder.glob("*.json")] == [world.state.watch.tally]
    assert world.state.watch.tally.startswith(f"{world.state.epoch:06}-")
    tally = read_tally(world.store, NAME, world.state.watch.tally)
    assert tally is not None and tally.canary[""].requests == 3 * 2000
    world.tick_until("promoted")
    assert list(folder.glob("*.json")) == []


def lose_tally(world: World, path: Path) -> None:
    path.unlink()


def change_tally(world: World, path: Path) -> None:
    path.write_text(path.read_text(encoding="utf-8").replace("2000", "9999"), encoding="utf-8")


@pytest.mark.parametrize("change", [lose_tally, change_tally])
def test_evidence_that_cannot_be_added_to_starts_over(world, change):
    world.observe(dwell_s=(300.0, 0.0, 0.0))
    world.tick(50.0)
    before = world.state.watch
    assert "tally" not in world.state.reason
    change(world, world.store.path("rollout", NAME, "tallies", f"{before.tally}.json"))
    world.tick(50.0)
    assert world.state.watch.evidence.canary.requests == 2000 and "tally is gone" in world.state.reason
    world.tick(50.0)
    assert world.state.watch.evidence.canary.requests == 4000, "only the change does"


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (lambda split: Unsettled(reason="one proxy lags"), "the router is not settled: one proxy lags"),
        (lambda split: None, "the router has no split"),
        (lambda split: split.model_copy(update={"canary": split.champion}), "between other models"),
        (lambda split: split.model_copy(update={"rollout": "another"}), "the split of rollout another"),
    ],
)
def test_requests_that_others_may_have_answered_are_no_evidence(world, read, words):
    world.observe(dwell_s=(1e6, 1e6, 1e6))
    split = world.router.read()
    world.router.read = lambda: read(split)
    for blind in (False, True):
        world.metrics.spoil = lambda look, blind=blind: None if blind else look
        world.tick(50.0)
        watch = world.state.watch
        assert words in world.state.reason
        assert (watch.evidence.canary.requests, watch.tally, watch.watched_until) == (0, "", world.now)
    assert watch.misses == 2
    decided(world, "pause")
    world.metrics.spoil = lambda look: look
    world.tick(50.0)
    assert world.state.watch.evidence.canary.requests == 0


@pytest.mark.parametrize("weight", [0, 3, 5])
def test_a_weight_lowered_while_it_rises_is_obeyed(world, weight):
    world.observe()
    world.tick_until("shifting")
    world.set_weight(weight)
    world.tick(50.0)
    assert (world.state.phase, world.weight()) == (Phase.HELD, weight)


def test_a_weight_lowered_within_a_tick_is_obeyed(world):
    world.observe(dwell_s=(1e6, 1e6, 1e6))
    read = world.router.read

    def then_lowered():
        split = read()
        del world.router.read
        world.set_weight(0)
        return split

    world.router.read = then_lowered
    world.tick(50.0)
    assert world.weight() == 0
    world.tick(50.0)
    assert (world.state.phase, world.weight()) == (Phase.HELD, 0)


def test_grades_that_are_late_stop_the_dwell(world):
    world.observe()
    began = world.now
    world.metrics.spoil = lambda look: look.model_copy(update={"graded_until": min(look.graded_until, began + 20)})
    for _ in range(8):
        world.tick(50.0)
    assert (world.state.phase, world.state.watch.dwell_s) == (Phase.OBSERVING, 20.0)
    world.metrics.spoil = lambda look: look
    world.tick(50.0)
    assert world.state.phase is Phase.SHIFTING


def test_grades_are_asked_for_from_where_they_ended(world):
    asked, began = observing_slowly(world)
    world.metrics.spoil = lambda look: look.model_copy(update={"graded_until": look.graded_until - 20.0})
    world.tick(50.0)
    world.tick(50.0)
    assert [(request.since, request.graded_since) for request in asked] == [(began, began), (began + 50, began + 30)]


def observing_slowly(world):
    world.observe(dwell_s=(1e6, 1e6, 1e6))
    world.tick(50.0)
    asked: list[LookRequest] = []
    look = world.metrics.look
    world.metrics.look = lambda split, request: asked.append(request) or look(split, request)
    return asked, world.now


def blinded(error: Exception):
    def spoil(*_):
        raise error

    return spoil


def test_what_a_look_could_not_read_the_next_one_reads(world):
    asked, began = observing_slowly(world)
    dwell = world.state.watch.dwell_s
    world.metrics.spoil = blinded(OSError("no second scrape yet"))
    world.tick(50.0)
    world.tick(50.0)
    world.metrics.spoil = lambda look: look
    world.tick(50.0)
    assert [request.since for request in asked] == [began] * 3
    assert all(request.graded_since == began for request in asked)
    assert (world.state.watch.misses, world.state.watch.dwell_s) == (0, dwell + 100.0), (
        "no more than a look's longest time"
    )
    world.tick(50.0)
    assert asked[-1].since == world.now - 50.0


def test_a_look_of_an_earlier_window_takes_nothing_back(world):
    world.observe(dwell_s=(1e6, 1e6, 1e6))
    world.tick(50.0)
    until = world.state.watch.watched_until
    world.tick(50.0)
    *before, last = read_events(world.store, NAME)
    earlier = last.model_copy(update={"look": last.look.model_copy(update={"window_end": until - 40.0})})
    assert fold([*before, earlier]).state.watch.watched_until == until


def test_a_weight_in_the_same_stage_is_a_new_request(world):
    world.observe(dwell_s=(1e6, 1e6, 1e6))
    world.tick(50.0)
    state, events = world.state, read_events(world.store, NAME)
    assert (state.requested_epoch, state.watch.looks) == (state.epoch - 1, 1), "a look asks for nothing"
    with pytest.raises(AssertionError, match="event 2 follows 0"):
        fold(events[1:])
    event = step_event(state, 1e4, RolloutStep(phase=state.phase, stage=state.stage, reason="", weight=3))
    assert fold([*events, event]).state.requested_epoch == event.epoch > state.requested_epoch


def test_misses_do_not_follow_a_canary_on_its_way_back(world):
    world.observe(dwell_s=(1e6, 1e6, 1e6))
    world.metrics.spoil = lambda look: None
    world.tick_until("held")
    world.tick(50.0)
    assert world.state.watch.misses == 4
    decided(world, "rollback")
    assert (world.state.phase, world.state.watch.misses) == (Phase.ROLLED_BACK, 0)
