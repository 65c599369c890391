"""Approval, supersession, slots, the lease and the way back."""

from dataclasses import replace

import pytest

from pipeline.core import audit
from pipeline.rollout.controller import tick
from pipeline.rollout.decision import RolloutDecision, decide, decisions
from pipeline.rollout.propose import champion
from pipeline.rollout.record import Phase, RolloutStep, append, step_event
from tests.pipeline.rollout.conftest import BASE, NAME, POLICY, WARM, decided, model, slot, waiting


def test_without_an_approval_no_candidate_gets_traffic(world):
    waiting(world)
    state = world.state
    with pytest.raises(AssertionError, match="not approved"):
        append(world.store, NAME, state, step_event(state, 1.0, RolloutStep(phase=Phase.SHIFTING, reason="")))
    split = world.router.read()
    assert split.canary is None, "nothing is loaded for a candidate that may be refused"
    assert not decided(world, "approve").refused
    assert world.state.phase is Phase.APPROVED
    assert world.tick_until("promoted").approved_by == "operator"


@pytest.mark.parametrize(("rollout", "why"), [("", "names no rollout"), ("another", "is not the active rollout")])
def test_an_approval_of_something_else_is_refused(world, rollout, why):
    waiting(world)
    decision = RolloutDecision(action="approve", reason="r", by="operator", rollout=rollout)
    assert why in decide(world.ports(), decision, world.now).refused
    assert world.state.phase is Phase.GATED


def test_files_that_change_after_an_approval_get_no_traffic(world):
    waiting(world)
    decided(world, "approve")
    changed = replace(world.ports(), intact=lambda model: model == BASE)
    state = tick(changed, world.now + 1).state
    assert (state.phase, world.weight()) == (Phase.ROLLING_BACK, 0)
    assert "files are gone or changed: models/new" in state.reason


@pytest.mark.parametrize(
    ("by", "proposed_by"),
    [("operator", "Operator"), ("operator", "operator@example.org"), ("ada@example.org", "ada"), ("operator", "")],
)
def test_nobody_approves_their_own_candidate(world, by, proposed_by):
    """Nor one whose proposer is not known. The record refuses it as the decision does: there is one rule."""
    waiting(world, proposed_by=proposed_by)
    assert "propose" in decided(world, "approve", by).refused
    state = world.state
    assert (state.phase, state.proposal is not None) == (Phase.GATED, True)
    own = RolloutStep(phase=Phase.APPROVED, reason="", action="approve", by=by)
    with pytest.raises(AssertionError, match="somebody who may not"):
        append(world.store, NAME, state, step_event(state, 1.0, own))


def test_a_resume_before_the_approval_is_none(world):
    waiting(world)
    decided(world, "pause")
    assert world.state.phase is Phase.HELD
    decided(world, "resume")
    world.tick(50.0)
    assert world.state.phase is Phase.GATED


def test_a_newer_candidate_replaces_one_without_traffic(world):
    waiting(world)
    before = world.state.rollout
    assert not world.propose("newer", number=2, data="later").refused
    assert world.state.past.finished == {before: Phase.SUPERSEDED}
    world.tick(1.0)
    entry = next(e for e in audit.entries(world.store) if e.detail.get("action") == "supersede")
    assert entry.subject.startswith(before) and "version 2" in entry.detail["reason"]


def test_an_older_candidate_takes_nobodys_place(world):
    world.propose("newer", number=2)
    assert world.propose("older", number=1, data="earlier").waits
    assert world.state.proposal.version.model.digest == "newer"


def test_a_slot_that_loads_is_waited_for_and_then_asked_about(world):
    slot(world, served_digest="", replicas=0, reason="loading")
    world.propose("new")
    for _ in range(10):
        world.tick(10.0)
    assert (world.state.phase, world.weight()) == (Phase.GATED, 0)
    assert world.router.read().canary == model("new"), "its slot has to know what to load"
    for _ in range(51):  # with one that gated it and nine that waited, the 60th
        assert world.state.phase is Phase.GATED
        world.tick(10.0)
    assert (world.state.phase, world.state.reason) == (Phase.HELD, "no server answers for new: loading")
    slot(world)
    decided(world, "resume")
    assert world.tick_until("promoted").past.promotions == 1


def test_a_slot_that_serves_another_model_gets_no_traffic(world):
    slot(world, served_digest="another")
    world.propose("new")
    assert "serves another" in world.tick_until("held").reason
    decided(world, "resume")
    world.tick(10.0)
    assert (world.state.phase, world.state.canary_weight, world.weight()) == (Phase.HELD, 0, 0)


@pytest.mark.parametrize("phase", ["observing", "held"])
def test_a_slot_that_turns_wrong_loses_its_traffic(world, phase):
    world.observe()
    if phase == "held":
        decided(world, "pause")
    slot(world, served_digest="another")
    world.tick(50.0)
    assert (world.state.phase, world.weight()) == (Phase.HELD, 0)
    decided(world, "resume")
    assert world.weight() == 0, "not before it serves the candidate again"
    slot(world)
    world.tick_until("promoted")


def test_a_slot_that_nobody_answers_from_is_left_without_blame(world):
    world.observe()
    for replicas in (0, 1, 0):
        slot(world, **({} if replicas else {"served_digest": "", "replicas": 0}))
        world.tick(10.0)
        assert (world.state.phase, world.state.watch.unready) == (Phase.OBSERVING, 1 - replicas), "two looks in a row"
    world.tick(10.0)
    assert (world.state.phase, world.weight(), world.state.quarantine) == (Phase.ROLLING_BACK, 0, False)


@pytest.mark.parametrize(
    ("replicas", "canary", "words", "blamed"),
    [
        (0, {"error_rate": 0.4}, "errors went from", False),
        (1, {"error_rate": 0.4}, "errors went from", True),
        (0, {"quality": 0.2}, "quality fell", True),
    ],
)
def test_errors_of_a_server_that_died_are_no_blame(world, replicas, canary, words, blamed):
    world.observe()
    slot(world, served_digest="new" if replicas else "", replicas=replicas)
    world.metrics.canary = canary
    world.tick(10.0)
    assert words in world.state.reason
    assert (world.state.phase, world.state.quarantine) == (Phase.ROLLING_BACK, blamed)


def test_the_champion_is_no_candidate(world):
    assert "champion already" in world.propose("new", against=model("new")).refused


def test_what_a_lease_that_ran_out_hid_is_no_evidence(world):
    world.observe()
    world.tick(POLICY.lease_s)
    assert (world.state.watch.misses, world.state.watch.evidence.canary.requests) == (1, 0)
    assert world.tick_until("promoted", "held").phase is Phase.PROMOTED


def test_the_way_back_is_kept_warm_and_waited_for(world):
    world.propose("new", policy=WARM)
    world.tick_until("promoted")
    world.tick(1.0)
    split = world.router.read()
    assert (split.champion, split.warm, split.canary) == (model("new"), BASE, None)
    assert "stays loaded" in world.propose("next", number=2).refused
    world.now = world.state.warm_until
    assert not world.propose("next", number=2).refused


def test_a_promotion_can_be_rolled_back_while_the_way_is_warm(world):
    world.propose("new", policy=WARM)
    world.tick_until("promoted")
    assert decisions(world.state, world.now) == ("rollback",)
    done = decided(world, "rollback")
    assert (done.state.phase, done.state.past.quarantined) == (Phase.ROLLED_BACK, {"new": 1})
    split = world.router.read()
    assert (split.champion, split.champion_weight, split.canary_weight) == (BASE, 100, 0)
    assert champion(world.store, NAME) is None
    assert "which was rolled back" in world.propose("late", number=2, against=model("new")).refused


def test_a_promotion_is_not_rolled_back_onto_an_empty_slot(world):
    world.propose("new", policy=WARM)
    world.tick_until("promoted")
    slot(world, served_digest="", replicas=0)
    assert "no way back" in decided(world, "rollback").refused
    slot(world)
    world.now += 5001.0
    assert "not kept loaded" in decided(world, "rollback").refused
    assert world.router.read().champion == model("new")
