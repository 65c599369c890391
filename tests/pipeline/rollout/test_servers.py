"""A weight takes servers: a slot with too few of them does not get it."""

import pytest

from pipeline.rollout.decision import resume
from pipeline.rollout.record import Phase
from pipeline.rollout.router import Readiness
from pipeline.rollout.servers import percent_of, servers_for, too_few
from tests.pipeline.rollout.conftest import BASE, NAME, POLICY

MANY = POLICY.model_copy(update={"requests_per_server": 10.0})


def scaled(world, canary, champion=4):
    """The slots have so many servers; an error is raised."""

    def ready(model):
        servers = champion if model == BASE else canary
        if isinstance(servers, Exception):
            raise servers
        return Readiness(served_digest=model.digest, replicas=servers)

    world.router.ready = ready


@pytest.mark.parametrize(
    ("percent", "champion", "busiest", "each", "servers"),
    [
        (5, 4, 0.0, None, 1),
        (25, 4, 0.0, None, 1),
        (26, 4, 0.0, None, 2),
        (100, 4, 0.0, None, 4),
        (25, 0, 0.0, None, 1),
        (25, 0, 100.0, 10.0, 3),
        (25, 4, 100.0, 100.0, 1),
        (25, 16, 100.0, 10.0, 4),
        (25, 4, 0.0, 10.0, 1),
        (25, 4, 1e6, None, 1),
    ],
)
def test_servers_are_in_proportion_and_by_load(percent, champion, busiest, each, servers):
    assert servers_for(percent, champion, busiest, each) == servers


def test_the_last_weight_is_sized_for_all_requests():
    assert [percent_of(POLICY, weight) for weight in (5, 25, 95)] == [5, 25, 100]
    assert too_few(POLICY, 95, 4, 4, 0.0) == ""
    assert too_few(POLICY, 95, 3, 4, 0.0).startswith("3 of 4 servers that 100% takes: the champion has 4.")


def test_a_slot_without_servers_for_the_first_weight_waits(world):
    scaled(world, canary=1, champion=40)
    world.propose("new")
    for _ in range(5):
        world.tick(1.0)
    assert (world.state.phase, world.weight()) == (Phase.GATED, 0)
    assert "the slot of new has 1 of 2 servers that 5% takes: the champion has 40" in world.state.reason
    scaled(world, canary=2, champion=40)
    world.tick_until("observing")
    assert world.weight() == 5


def test_a_weight_without_servers_is_not_asked_for(world):
    scaled(world, canary=1)
    world.propose("new")
    for _ in range(20):
        world.tick(50.0)
    state = world.state
    assert (state.phase, state.stage, world.weight()) == (Phase.OBSERVING, 1, 25)
    assert "the slot of new has 1 of 4 servers that 100% takes: the champion has 4" in state.reason
    scaled(world, canary=4)
    assert world.tick_until("promoted").promotions == 1


def test_a_promotion_takes_servers_for_all_requests(world):
    scaled(world, canary=4)
    world.propose("new")
    world.tick_until("observing")
    while world.weight() < 95:
        world.tick(50.0)
    scaled(world, canary=3)
    for _ in range(10):
        world.tick(50.0)
    assert (world.state.phase, world.weight()) == (Phase.OBSERVING, 95)
    assert "3 of 4 servers that 100% takes" in world.state.reason


def test_servers_that_go_before_the_router_is_asked_hold_it(world):
    """They went after the weight was decided."""
    scaled(world, canary=8, champion=8)
    world.propose("new")
    world.tick_until("observing")
    asked = world.router.ready

    def ready(model):
        gone = model != BASE and world.state.phase is Phase.SHIFTING
        return asked(model).model_copy(update={"replicas": 1 if gone else 8})

    world.router.ready = ready
    world.tick_until("held")
    assert (world.weight(), world.state.settled) == (5, 0)
    assert "1 of 2 servers that 25% takes" in world.state.reason
    scaled(world, canary=8, champion=8)
    resume(world.store, NAME, "scaled up", world.now)
    assert world.tick_until("promoted").promotions == 1


def test_the_load_of_the_busiest_look_counts(world):
    """40,000 requests in a look of 50 s are 800 a second, of which a server carries 10."""
    scaled(world, canary=4)
    world.propose("new", policy=MANY)
    for _ in range(10):
        world.tick(50.0)
    assert world.state.evidence.busiest_per_s == 800.0
    assert (world.state.phase, world.weight()) == (Phase.OBSERVING, 5)
    assert "4 of 20 servers that 25% takes: the champion has 4, and 800.0 requests a second came" in world.state.reason
    world.metrics.requests = 400
    scaled(world, canary=19)
    world.tick(50.0)
    assert world.weight() == 5, "a quiet hour is not what it is sized for"
    world.metrics.requests = 40_000
    scaled(world, canary=80)
    assert world.tick_until("promoted").promotions == 1


@pytest.mark.parametrize("champion", [ConnectionError("away"), 0])
def test_a_champion_that_cannot_be_asked_is_no_reason(world, champion):
    scaled(world, canary=1, champion=champion)
    world.propose("new")
    assert world.tick_until("promoted").promotions == 1


def test_a_weight_that_falls_needs_no_servers(world):
    scaled(world, canary=4)
    world.propose("new")
    world.tick_until("observing")
    scaled(world, canary=1, champion=100)
    world.metrics.canary = {"quality": 0.2}
    world.tick_until("rolled_back")
    assert world.weight() == 0
