import pytest

from pipeline.rollout.decision import abort
from pipeline.rollout.propose import ChampionState, champion
from pipeline.rollout.record import Phase, read_events
from pipeline.views.rollout import RolloutStatus, share_estimate, status
from tests.pipeline.rollout.conftest import BASE, NAME, World


def shown(world: World) -> RolloutStatus:
    serving = champion(world.store, NAME) or ChampionState(model=BASE, version=0, promotions=0)
    return status(NAME, serving, read_events(world.store, NAME), world.router.read(), world.now)


def test_a_held_rollout_is_told_with_what_was_measured_and_why(world):
    world.observe()
    world.tick(90.0)
    world.metrics.spoil = lambda look: None
    world.tick_until("held")
    held_at = world.now
    world.tick(500.0)
    report = shown(world)
    assert report.state == world.state
    assert (report.since, report.weight, report.router, report.wanted_graded) == (held_at, 5, 5, 1518)
    quality = share_estimate(report.state.watch.evidence.canary.quality, report.state.opened.policy)
    assert quality.low is not None and quality.high is not None
    assert quality.low < 0.7 < quality.high
    assert (report.last_look, report.last_look_at) == ("no metrics", world.now)
    assert report.decisions == ("resume", "abort", "rollback")


@pytest.mark.parametrize(
    ("phase", "waits_for"),
    [
        ("proposed", "files of both models"),
        ("gated", "first weight, 5%"),
        ("shifting", "router to read 5%"),
        ("observing", "the next look"),
        ("held", "resume or abort"),
    ],
)
def test_each_phase_waits_for_something_and_can_be_aborted(world, phase, waits_for):
    if phase == "held":
        world.metrics.spoil = lambda look: None
    world.propose("new")
    world.tick_until(phase)
    report = shown(world)
    assert waits_for in report.waits_for
    assert "abort" in report.decisions
    assert ("resume" in report.decisions) == (phase == "held")


def test_status_of_a_rollback_leaves_nothing_to_decide(world):
    world.observe()
    abort(world.store, NAME, "why not", world.now, "operator")
    report = shown(world)
    assert (report.weight, report.router, report.decisions) == (0, 5, ())
    assert (report.waits_for, report.state.reason, report.by) == ("the router to read 0%", "why not", "operator")
    world.tick_until("aborted")
    report = shown(world)
    assert (report.state.phase, report.router, report.decisions) == (Phase.ABORTED, 0, ())
    assert (report.state.reason, report.by) == ("why not", "operator")
    assert report.waits_for == "the next candidate that passes the gate"
