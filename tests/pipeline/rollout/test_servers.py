"""A weight takes servers: a slot with too few of them does not get it."""

import pytest

from pipeline.rollout.reconcile import too_few_servers
from pipeline.rollout.record import Phase
from pipeline.rollout.router import Readiness
from pipeline.rollout.rules import stage_timeout
from tests.pipeline.rollout.conftest import BASE, POLICY, decided, slot
from tests.pipeline.rollout.looks import POLICY as BY_USER
from tests.pipeline.rollout.looks import arm, evidence
from tests.pipeline.rollout.reports import proposal


def scaled(world, canary, champion=4):
    """The slots have so many servers; an error is raised."""

    def ready(model):
        servers = champion if model == BASE else canary
        if isinstance(servers, Exception):
            raise servers
        return Readiness(served_digest=model.digest, replicas=servers)

    world.router.ready = ready


@pytest.mark.parametrize(
    ("percent", "champion", "servers"), [(5, 4, 1), (25, 4, 1), (26, 4, 2), (100, 4, 4), (25, 404, 101), (25, 0, 1)]
)
def test_servers_are_in_proportion(world, percent, champion, servers):
    policy = POLICY.model_copy(update={"weights": (5, 25, 26, 100), "holdback": 0})
    given = proposal().model_copy(update={"policy": policy, "champion": BASE})
    scaled(world, canary=servers, champion=champion)
    assert too_few_servers(world.router, given, percent) == ""
    scaled(world, canary=servers - 1, champion=champion)
    assert f"{servers - 1} of {servers} servers that {percent}% takes" in too_few_servers(world.router, given, percent)


def test_a_weight_without_servers_is_not_asked_for(world):
    scaled(world, canary=1, champion=21)
    world.propose("new")
    for _ in range(3):
        world.tick(10.0)
    assert "has 1 of 2 servers that 5% takes" in world.state.reason
    scaled(world, canary=1)
    for _ in range(20):
        world.tick(50.0)
    state = world.state
    assert (state.phase, state.stage, world.weight()) == (Phase.OBSERVING, 1, 25)
    assert "the slot of new has 1 of 4 servers that 100% takes: the champion has 4" in state.reason
    scaled(world, canary=4)
    assert world.tick_until("promoted").past.promotions == 1


def test_servers_that_go_before_the_router_is_asked_hold_it(world):
    """They went after the weight was decided."""
    scaled(world, canary=8, champion=8)
    world.observe()
    asked = world.router.ready

    def ready(model):
        gone = model != BASE and world.state.phase is Phase.SHIFTING
        return asked(model).model_copy(update={"replicas": 1 if gone else 8})

    world.router.ready = ready
    world.tick_until("held")
    assert (world.weight(), world.state.confirmed_stage) == (5, 0)
    assert "1 of 2 servers that 25% takes" in world.state.reason
    scaled(world, canary=8, champion=8)
    decided(world, "resume")
    assert world.tick_until("promoted").past.promotions == 1


@pytest.mark.parametrize("champion", [ConnectionError("away"), 0])
def test_a_champion_that_cannot_be_asked_is_no_reason(world, champion):
    scaled(world, canary=1, champion=champion)
    world.propose("new")
    assert world.tick_until("promoted").past.promotions == 1


SOON = POLICY.model_copy(update={"max_wait_s": 200.0})
"""A dwell of 100 s, and 200 s for the sample."""
DAY = BY_USER.model_copy(update={"max_wait_s": 86_400.0})


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
    assert (state.phase, world.weight(), state.watch.covered_s) == (Phase.HELD, 5, 400.0)
    assert state.reason.startswith(
        "this stage's own answers tell the fall of quality to 0.075, 0.03 needed after 400 s"
    )
    assert "with metrics, over 300 s (dwell and" in state.reason
    assert "Give it a larger share (rollout.weights)" in state.reason


@pytest.mark.parametrize(
    ("what", "words"), [("grades", "0 of 100 s at 5%"), ("slot", "is not ready: warming up after 400 s")]
)
def test_what_is_never_complete_or_certain_is_held(world, what, words):
    """The sample is there, but the watermark of the grades stands still, or the slot says that it warms up."""
    observed(world)
    began = world.now
    if what == "grades":
        world.metrics.spoil = lambda look: look.model_copy(update={"graded_until": began})
    else:
        slot(world, reason="warming up")
    assert ticks(world, 3).phase is Phase.OBSERVING
    state = ticks(world, 1)
    assert state.phase is Phase.HELD and words in state.reason


def test_time_without_metrics_or_by_a_clock_is_no_waiting(world):
    observed(world, SOON.model_copy(update={"lease_s": 1e6}))
    world.metrics.requests = 200
    world.tick(86_400.0)  # the controller was away, or the clock jumped
    assert (world.state.phase, world.state.watch.covered_s) == (Phase.OBSERVING, 100.0)
    world.metrics.spoil = lambda look: None
    ticks(world, 2)
    assert (world.state.phase, world.state.watch.covered_s) == (Phase.OBSERVING, 100.0)


def test_a_stage_that_waits_too_long_says_what_the_canary_got():
    seen = evidence(arm(19_000), arm(1000, graded=499))
    says = stage_timeout("it lacks", seen, DAY, 172_801.0, 0.0)
    assert "got 1000 requests, 499 of its answers have a grade" in says
    ungraded = stage_timeout("it lacks", seen, DAY.model_copy(update={"gradable": False}), 172_801.0, 0.0)
    assert "got 1000 requests. Give" in ungraded
    assert stage_timeout("it lacks", seen, DAY.model_copy(update={"max_wait_s": None}), 172_801.0, 0.0) == ""
