import shutil
from dataclasses import replace

import pytest

from pipeline.core.storage import ModelRef, model_ref
from pipeline.demo import MODEL_DIR
from pipeline.rollout.controller import tick
from pipeline.rollout.decision import abort
from pipeline.rollout.propose import champion
from pipeline.rollout.record import Phase, read_events
from pipeline.rollout.router import Readiness, is_intact
from tests.pipeline.rollout.conftest import BASE, NAME, POLICY, decided, model


def test_good_canary_takes_every_weight_and_becomes_champion(world):
    assert champion(world.store, NAME) is None
    assert world.propose("new").state.phase is Phase.PROPOSED
    weights = [0]
    for _ in range(30):  # twice as many as it takes
        world.tick(50.0)
        weights += [world.weight()] if world.weight() != weights[-1] else []
    assert weights == [0, 5, 25, 95, 0]  # at last the candidate is the champion and there is no canary
    split = world.router.read()
    assert (split.champion, split.champion_weight, split.canary) == (model("new"), 100, None)
    result = champion(world.store, NAME)
    assert (result.model, result.version, result.promotions) == (model("new"), 1, 1)
    assert world.registry.aliases == {"champion": 1}


def test_dwell_is_the_time_that_good_metrics_cover(world):
    world.observe(dwell_s=(160.0, 200.0, 100.0))
    world.metrics.spoil = lambda look: None
    world.tick(90.0)
    world.tick(90.0)
    assert world.state.watch.dwell_s == 0.0
    world.metrics.spoil = lambda look: look
    world.tick(60.0)  # it reads all 240 s, and adds one look's longest time
    assert (world.state.watch.dwell_s, world.state.watch.misses, world.state.phase) == (100.0, 0, Phase.OBSERVING)
    epoch = world.tick(59.0).state.epoch
    assert (world.tick().state.epoch, world.state.phase) == (epoch, Phase.OBSERVING), "nothing new"
    world.tick(1.0)
    assert (world.state.phase, world.state.stage) == (Phase.SHIFTING, 1)


@pytest.mark.parametrize(
    "spoil",
    [lambda look: None, lambda look: look.model_copy(update={"window_end": look.window_end + 1}), lambda look: 1 / 0],
)
def test_three_unusable_looks_in_a_row_hold_at_the_same_weight(world, spoil):
    world.observe()
    world.metrics.spoil = spoil
    for _ in range(3):
        world.tick(200.0)
    assert (world.state.phase, world.weight(), world.state.watch.dwell_s) == (Phase.HELD, 5, 0.0)
    assert (world.state.watch.watched_until, world.state.watch.evidence.canary.requests) == (world.now, 0)
    world.tick(200.0)
    assert world.state.phase is Phase.HELD
    world.metrics.spoil = lambda look: look
    decided(world, "resume")
    assert world.tick_until("promoted").past.promotions == 1


def test_too_little_traffic_waits_and_never_advances(world):
    world.observe()
    world.metrics.requests = 20
    for _ in range(30):
        world.tick(100.0)
    assert (world.state.phase, world.state.stage, world.state.watch.evidence.canary.requests) == (
        Phase.OBSERVING,
        0,
        30,
    )


@pytest.mark.parametrize(
    "harm", [{"quality": 0.4}, {"error_rate": 0.5}, {"seconds": 2.0}], ids=["quality", "errors", "latency"]
)
def test_harm_takes_the_canary_to_zero_and_quarantines_it(world, harm):
    world.metrics.canary = harm
    world.router.ready = lambda of: Readiness(served_digest=of.digest, replicas=20 if of == BASE else 1)
    world.propose("bad", policy=POLICY.model_copy(update={"dwell_s": (1e4, 1e4, 1e4)}))
    assert world.tick_until("rolled_back").reason
    assert (world.weight(), world.router.read().champion) == (0, BASE)
    assert "quarantined" in world.propose("bad", data="other data").refused
    assert champion(world.store, NAME) is None


def test_a_stage_gathers_answers_until_it_decides_or_asks(world):
    """A drop of just the margin is neither harm nor proven to be less; an equal canary is let on by later answers."""
    world.metrics.canary, policy = {"quality": 0.67}, POLICY.model_copy(update={"max_wait_s": 800.0})
    world.propose("new", policy=policy)
    state = world.tick_until("held")
    assert "not proven to be less than 0.03 with 38000 graded canary answers after 950 s" in state.reason.replace(
        ",", ""
    )
    assert (world.weight(), state.stage) == (5, 0)
    world.metrics.canary = {}
    decided(world, "resume")
    assert world.tick_until("promoted", limit=200).past.promotions == 1


def test_a_held_canary_that_does_harm_is_rolled_back(world):
    world.metrics.spoil = lambda look: None
    world.propose("new")
    reason = world.tick_until("held").reason
    world.metrics.spoil = lambda look: look
    world.tick(50.0)
    assert (read_events(world.store, NAME)[-1].reason, world.state.reason) == ("no harm is proven", reason)
    world.metrics.canary = {"quality": 0.3}
    assert world.tick_until("rolled_back").past.quarantined == {"new": 1}


def test_controller_that_lost_a_race_applies_the_winning_step(world):
    world.propose("new")
    world.tick_until("gated")
    read = world.router.read

    def aborted_meanwhile():
        world.router.read = read
        abort(world.store, NAME, "at the last moment", world.now)
        return read()

    world.tick(1.0)  # to 5%
    world.router.read = aborted_meanwhile
    world.tick(1.0)
    assert (world.state.phase, world.weight()) == (Phase.ROLLING_BACK, 0)


def test_a_share_that_contradicts_the_weight_holds(world):
    world.observe()
    world.metrics.spoil = lambda look: look.model_copy(update={"champion": look.canary})
    world.tick(100.0)
    assert world.state.phase is Phase.HELD


def test_rollback_moves_traffic_while_the_registry_is_down(world):
    world.observe()
    world.registry.down, world.metrics.canary = True, {"quality": 0.3}
    world.tick_until("rolling_back")
    assert world.weight() == 0
    assert world.tick(1.0).errors == ("registry: registry is down",)
    assert world.state.phase is Phase.ROLLED_BACK
    world.registry.down = False
    assert world.tick().errors == ()
    assert world.registry.aliases == {}


@pytest.mark.parametrize("broken", ["champion", "candidate"])
def test_files_that_changed_since_the_gate_end_the_rollout(world, tmp_path, broken):
    world.propose("new")
    lost = BASE if broken == "champion" else model("new")
    for _ in range(3):
        tick(replace(world.ports(), intact=lambda m: m != lost), 1.0)
    assert (world.state.phase, world.weight()) == (Phase.ABORTED, 0)
    assert lost.uri in world.state.reason


def test_intact_means_the_same_bytes(tmp_path):
    folder = tmp_path / "m"
    shutil.copytree(MODEL_DIR, folder)
    ref = model_ref(folder)
    assert is_intact(ref)
    (folder / "config.json").write_text("{ }")
    assert not is_intact(ref)
    assert not is_intact(ModelRef(uri=str(tmp_path / "none"), digest="x"))
