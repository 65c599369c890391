from datetime import UTC, datetime

import pytest

from pipeline.core.storage import ModelRef
from pipeline.rollout.decision import abort, resume
from pipeline.rollout.propose import RolloutCandidate, champion, on_hold, propose
from pipeline.rollout.record import JudgedCandidate, Phase, read_events
from pipeline.training.result import Health
from tests.pipeline.rollout.conftest import BASE, NAME, POLICY, World, iteration_over, version_of


def test_only_a_pass_on_this_very_model_is_let_in(world):
    assert world.propose("new", verdict="INCONCLUSIVE").refused == "the verdict is INCONCLUSIVE"
    iteration = iteration_over(BASE)
    with pytest.raises(ValueError, match="Evaluate the model that is proposed"):
        propose(
            world.store,
            iteration,
            RolloutCandidate(version_of("new", 1, iteration), JudgedCandidate("PASS", "other", "bundle")),
            POLICY,
            0.0,
        )
    assert world.state.epoch == 0


def test_propose_again_changes_nothing_and_others_wait(world):
    world.propose("new")
    assert world.propose("new") == world.propose("new")
    assert "is proposed" in world.propose("other").refused
    world.tick_until("promoted")
    assert "no longer the champion" in propose_after(world, "late", BASE).refused
    assert world.state.phase is Phase.PROMOTED


def test_a_champion_serves_since_its_promotion(world):
    assert champion(world.store, NAME) is None
    world.propose("new")
    world.tick_until("promoted")
    promoted = next(e.at for e in read_events(world.store, NAME) if e.phase is Phase.PROMOTED)
    result = champion(world.store, NAME)
    assert result.since == datetime.fromtimestamp(promoted, UTC)
    world.now += 1000
    world.propose("next", number=2)
    assert champion(world.store, NAME) == result, "a rollout that has begun changes nothing"


def propose_after(world: World, digest: str, against: ModelRef):
    iteration = iteration_over(against)
    return propose(
        world.store,
        iteration,
        RolloutCandidate(version_of(digest, 9, iteration), JudgedCandidate("PASS", digest, "bundle")),
        POLICY,
        world.now,
    )


def test_a_rollout_that_is_over_is_not_opened_again(world):
    world.metrics.canary = {"quality": 0.3}
    world.propose("bad")
    world.tick_until("rolled_back")
    epoch = world.state.epoch
    assert world.propose("bad").state.phase is Phase.ROLLED_BACK
    world.metrics.canary = {}
    world.propose("good", number=2)
    world.tick_until("promoted")
    assert "over: rolled_back" in propose_after(world, "bad", BASE).refused
    assert world.state.epoch > epoch


@pytest.mark.parametrize(
    ("verdict", "accepted", "words"),
    [
        ("PASS", "", ""),
        ("HOLD", "", "set rollout.accept_hold to 'i'"),
        ("HOLD", "another", "set rollout.accept_hold to 'i'"),
        ("HOLD", "i", ""),
        ("STOP", "i", "Start a new iteration"),
    ],
)
def test_a_training_on_hold_waits_for_who_names_it(verdict, accepted, words):
    refused = on_hold(Health(verdict=verdict), "i", accepted)
    assert words in refused and bool(words) == bool(refused)


def test_only_a_held_rollout_is_resumed(world):
    world.propose("new")
    world.tick_until("observing")
    before = world.state
    assert not resume(world.store, NAME, "impatience", world.now)
    assert world.state == before
    world.tick_until("promoted")
    assert not resume(world.store, NAME, "impatience", world.now)
    assert not abort(world.store, NAME, "too late", world.now)
    assert world.state.phase is Phase.PROMOTED
