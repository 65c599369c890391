from types import SimpleNamespace

import pytest

from pipeline.core import layout
from pipeline.recipe import Rollout
from pipeline.rollout.decision import RolloutDecision, decide
from pipeline.rollout.policy import account, approval_refusal, policy_of, proposer
from pipeline.rollout.propose import on_hold
from pipeline.rollout.record import ErasureBlock, Phase, block, blocked
from pipeline.rollout.router import route
from pipeline.training.result import Health
from tests.pipeline.rollout.conftest import BASE, World, iteration_over, split_at, version_of


def test_only_a_pass_on_this_very_model_is_let_in(world):
    assert world.propose("new", verdict="INCONCLUSIVE").refused == "the verdict is INCONCLUSIVE"
    with pytest.raises(ValueError, match="Evaluate the model that is proposed"):
        world.propose("new", judged="other")
    assert world.state.epoch == 0


def test_propose_again_changes_nothing_and_others_wait(world):
    world.propose("new")
    assert world.propose("new") == world.propose("new")
    assert len(world.state.rollout) == 12
    assert "is proposed" in world.propose("other").refused
    world.metrics.spoil = lambda look: None
    held = world.tick_until("held")
    assert f"rollout {held.rollout} is held at 5%: {held.reason}" in world.propose("other").refused
    world.metrics.spoil = lambda look: look
    decide(world.ports(), RolloutDecision(action="resume", reason="metrics are back", by="operator"), world.now)
    world.tick_until("promoted")
    assert "no longer the champion" in world.propose("late", number=9, against=BASE).refused
    assert world.state.phase is Phase.PROMOTED


def test_a_rollout_that_is_over_is_not_opened_again(world):
    world.metrics.canary = {"quality": 0.3}
    world.propose("bad")
    world.tick_until("rolled_back")
    epoch = world.state.epoch
    assert world.propose("bad").state.phase is Phase.ROLLED_BACK
    world.metrics.canary = {}
    world.propose("good", number=2)
    world.tick_until("promoted")
    assert "over: rolled_back" in world.propose("bad", number=9, against=BASE).refused
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


APPROVERS = ("ada@example.org", "bob")


@pytest.mark.parametrize(
    ("by", "proposed_by", "why"),
    [
        ("bob", "ada", ""),
        ("ada@example.org", "schedule nightly", ""),
        ("ada", "bob", "ada is not among rollout.approvers (ada@example.org, bob)"),
        ("Bob", "ada", "is not among"),
        ("", "ada", "nobody is not among"),
        ("bob", "", "not on record"),
        ("bob", "BOB", "bob proposed this candidate as BOB: somebody else"),
        ("bob", "bob@example.org", "bob proposed"),
        ("ada@example.org", "ada", "proposed this candidate as ada"),
        ("ada@example.org", "ada@elsewhere.example.org", "proposed"),
    ],
)
def test_one_of_the_approvers_who_did_not_propose_it_may(by: str, proposed_by: str, why: str) -> None:
    refusal = approval_refusal(by, APPROVERS, proposed_by)
    assert why in refusal if why else refusal == ""


@pytest.mark.parametrize(
    ("tags", "who"),
    [
        ({}, "ada"),
        ({"launched_by": "bob"}, "bob"),
        ({"launched_by": "daemon", "dagster/schedule_name": "nightly"}, "schedule nightly"),
        ({"launched_by": "daemon", "dagster/sensor_name": "champion_changed"}, "sensor champion_changed"),
    ],
)
def test_the_proposer_is_who_launched_the_run(tags: dict[str, str], who: str) -> None:
    assert proposer(tags, "ada") == who


def test_an_account_without_a_name_is_its_number(monkeypatch):
    monkeypatch.setattr("pwd.getpwuid", {7: SimpleNamespace(pw_name="ada")}.__getitem__)
    monkeypatch.setattr("os.getuid", iter((7, 8, 8)).__next__)
    assert [account(), account()] == ["ada", "uid 8"]


NAN = float("nan")
ROUTE = {
    "export_to": "s3://models/served",
    "traffic": {"kind": "http_route"},
    "metrics": {"url": "http://prometheus:9090"},
}


@pytest.mark.parametrize(
    "change",
    [
        {"weights": (5, 25), "dwell_s": (1.0, 1.0)},
        {"weights": (100,), "dwell_s": (1.0,)},
        {"weights": (25, 5, 100)},
        {"weights": (5, 5, 100)},
        {"dwell_s": (1.0,)},
        {"dwell_s": ()},
        {"dwell_s": (1.0, NAN, 1.0)},
        {"dwell_s": (1.0, -1.0, 1.0)},
        {"holdback": 0},
        {"weights": (5, 95, 100)},
        {"weights": (5, 60, 100), "holdback": 40},
    ],
)
def test_a_policy_that_leads_nowhere_is_refused(change):
    with pytest.raises(ValueError, match=r"Give|give a holdback|finite number"):
        policy_of(Rollout(**change))


def test_a_look_counts_for_two_intervals_at_most():
    assert policy_of(Rollout(look_every_s=30.0)).max_look_s == 60.0


def test_the_last_weight_leaves_the_holdback_with_the_champion():
    policy = policy_of(Rollout(weights=(5, 89, 100), holdback=10))
    assert [policy.canary_weights[stage] for stage in range(3)] == [5, 89, 90]
    short = policy_of(Rollout(weights=(50, 100), dwell_s=(0.0, 0.0)))
    assert (short.weights, short.dwell_s) == ((50, 100), (0.0, 0.0))


def test_a_gateway_that_records_no_text_cannot_be_graded():
    silent = {"traffic": {"kind": "gateway", "record": "operations"}}
    assert policy_of(Rollout()).gradable
    unread = policy_of(Rollout(), gradable=False)
    assert (unread.gradable, unread.by_feedback) == (False, False)
    assert not policy_of(Rollout.model_validate(silent)).gradable
    route = policy_of(Rollout.model_validate(ROUTE))
    assert (route.gradable, route.unit, policy_of(Rollout()).unit) == (True, "request", "user")
    rated = [policy_of(Rollout.model_validate(section), rated=True) for section in ({}, silent)]
    assert [(each.gradable, each.by_feedback) for each in rated] == [(True, False), (True, True)]
    assert policy_of(Rollout(), gradable=False, rated=True).by_feedback
    with pytest.raises(ValueError, match="which has its own metrics"):
        Rollout.model_validate({**silent, "metrics": ROUTE["metrics"]})


def by_digest(digest: str) -> ErasureBlock:
    return ErasureBlock(proof="p1", digests=(digest,), iterations=())


def test_a_blocked_model_or_iteration_is_not_let_in(world: World) -> None:
    block(world.store, by_digest("bad"))
    refused = world.propose("bad").refused
    assert refused == "version 1 is blocked: it learned from data that erasure p1 removed"
    assert world.state.phase is Phase.IDLE
    iteration = iteration_over(BASE)
    assert blocked(world.store, version_of("good", 1, iteration)) == ""
    block(world.store, ErasureBlock(proof="p2", digests=(), iterations=(iteration.id,)))
    assert "erasure p2" in blocked(world.store, version_of("made later", 2, iteration))
    file = layout.iteration(iteration.id, layout.TRAINING, layout.BLOCKED_FILE)
    assert world.store.read(file, ErasureBlock) is not None, "a trainer of this iteration finds it in its folder"


@pytest.mark.parametrize("phase", ["proposed", "gated", "shifting", "observing", "held"])
def test_a_block_takes_an_active_rollout_back_without_blame(world: World, phase: str) -> None:
    if phase == "held":
        world.metrics.spoil = lambda look: None
    world.propose("new")
    world.tick_until(phase)
    block(world.store, by_digest("new"))
    state = world.tick_until("aborted")
    assert world.weight() == 0
    assert "is blocked" in state.reason
    assert "new" not in state.past.quarantined
    assert world.propose("new").state == state
    assert "is blocked" in world.propose("new", data="other").refused


def test_a_blocked_champion_serves_on(world: World) -> None:
    world.propose("new")
    world.tick_until("promoted")
    block(world.store, by_digest("new"))
    world.tick(50)
    assert world.state.phase is Phase.PROMOTED
    assert world.state.past.champion is not None
    split = world.router.read()
    assert split is not None
    assert split.champion.digest == "new"


@pytest.mark.parametrize("weight", [0, 25, 100])
def test_shares_match_the_weights(weight):
    got = sum(route(split_at(weight), f"request-{n}") == "canary" for n in range(5_000)) / 50
    assert got == pytest.approx(weight, abs=2.0 if 0 < weight < 100 else 0)


def test_router_keeps_canary_requests_within_a_rollout():
    ids = [f"request-{n}" for n in range(2000)]
    at_5, at_25 = ({i for i in ids if route(split_at(w), i) == "canary"} for w in (5, 25))
    assert at_5 < at_25
    assert at_5 != {i for i in ids if route(split_at(5, rollout="next"), i) == "canary"}
