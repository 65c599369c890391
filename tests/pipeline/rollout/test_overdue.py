"""A stage that lacks its sample for too long is held, with what would help."""

import pytest

from pipeline.recipe import Rollout
from pipeline.recipe.section import settings
from pipeline.rollout.decision import resume
from pipeline.rollout.overdue import overdue
from pipeline.rollout.policy import policy_of
from pipeline.rollout.record import Phase
from pipeline.rollout.router import Readiness
from tests.pipeline.rollout.conftest import NAME
from tests.pipeline.rollout.conftest import POLICY as SHORT
from tests.pipeline.rollout.looks import POLICY, arm, evidence

SOON = SHORT.model_copy(update={"max_wait_s": 200.0})
"""A dwell of 100 s, and 200 s for the sample."""
DAY = POLICY.model_copy(update={"max_wait_s": 86_400.0})


def observed(world, policy=SOON, **canary):
    world.propose("new", policy=policy)
    world.tick_until("observing")
    world.metrics.canary = canary


def ticks(world, count, every_s=100.0):
    for _ in range(count):
        world.tick(every_s)
    return world.state


def test_too_few_requests_are_held_after_dwell_and_wait(world):
    observed(world)
    world.metrics.requests = 200
    assert ticks(world, 3).phase is Phase.OBSERVING
    state = ticks(world, 1)
    assert (state.phase, world.weight(), state.covered_s) == (Phase.HELD, 5, 400.0)
    assert state.reason.startswith("40 of 1524 graded canary answers after 400 s with metrics, over 300 s (dwell and")
    assert "requests are few: give the stage a larger share of them (rollout.weights)" in state.reason


def test_too_few_grades_are_held_and_name_what_would_help(world):
    observed(world, graded=0.001)
    assert ticks(world, 3).phase is Phase.OBSERVING
    state = ticks(world, 1)
    assert state.phase is Phase.HELD
    assert "0% of the canary's answers are graded: give references, a judge, or collect more feedback" in state.reason


def test_grades_that_are_never_complete_are_held(world):
    """The sample is there, but the watermark of the grades stands still: the dwell never ends."""
    observed(world)
    began = world.now
    world.metrics.spoil = lambda look: look.model_copy(update={"graded_until": began})
    assert ticks(world, 3).phase is Phase.OBSERVING
    state = ticks(world, 1)
    assert state.phase is Phase.HELD and "0 of 100 s at 5%" in state.reason


def test_a_slot_that_is_never_certain_is_held(world):
    observed(world)

    def ready(model):
        return Readiness(served_digest=model.digest, replicas=1, reason="warming up")

    world.router.ready = ready
    assert ticks(world, 3).phase is Phase.OBSERVING
    state = ticks(world, 1)
    assert state.phase is Phase.HELD and "is not ready: warming up after 400 s" in state.reason


def test_a_resumed_stage_waits_as_long_again(world):
    observed(world)
    world.metrics.requests = 200
    ticks(world, 4)
    assert resume(world.store, NAME, "wait on", world.now)
    world.tick_until("observing")
    assert ticks(world, 3).phase is Phase.OBSERVING
    assert ticks(world, 1).phase is Phase.HELD


def test_time_without_metrics_or_by_a_clock_is_no_waiting(world):
    observed(world, SOON.model_copy(update={"lease_s": 1e6}))
    world.metrics.requests = 200
    world.tick(86_400.0)  # the controller was away, or the clock jumped
    assert (world.state.phase, world.state.covered_s) == (Phase.OBSERVING, 100.0)
    world.metrics.spoil = lambda look: None
    ticks(world, 2)
    assert (world.state.phase, world.state.covered_s) == (Phase.OBSERVING, 100.0)


@pytest.mark.parametrize("limit", [None, 1e9])
def test_without_a_limit_a_stage_waits_on(world, limit):
    observed(world, SHORT.model_copy(update={"max_wait_s": limit}))
    world.metrics.requests = 20
    assert ticks(world, 40).phase is Phase.OBSERVING


def test_a_stage_that_has_its_sample_is_never_overdue(world):
    observed(world, SHORT.model_copy(update={"max_wait_s": 1e-3}))
    assert world.tick_until("promoted").finished


@pytest.mark.parametrize(
    ("canary", "policy", "words"),
    [
        (arm(0, users=0), DAY, "The canary got no request"),
        (arm(1000, graded=0), DAY, "None comes, and 0% of the canary's answers are graded"),
        (arm(600, graded=300), DAY, "At this rate 1,508 more graded answers take 10.1 days, and requests are few"),
        (arm(2000, graded=1518), DAY, "requests are few"),
        (
            arm(300, graded=0),
            DAY.model_copy(update={"gradable": False}),
            "At this rate 345 more requests take 2.3 days, and requests are few",
        ),
        (arm(1600), DAY.model_copy(update={"min_canary_requests": 50}), "Look at what holds it up"),
    ],
)
def test_the_advice_follows_from_what_is_missing(canary, policy, words):
    assert words in overdue("it lacks", evidence(arm(19_000), canary), policy, 5, 172_801.0, 0.0)


def test_the_limit_is_in_the_policy_and_in_no_old_digest():
    assert policy_of(Rollout()).max_wait_s == 2_592_000.0
    assert policy_of(Rollout(max_wait_s=None)).max_wait_s is None
    assert "max_wait_s" not in settings(Rollout())
    assert settings(Rollout(max_wait_s=60.0))["max_wait_s"] == 60.0
    with pytest.raises(ValueError, match="greater than 0"):
        Rollout(max_wait_s=0.0)
