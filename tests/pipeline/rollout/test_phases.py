"""Approval, shadow, supersession, slots, the lease and the way back."""

from dataclasses import replace
from itertools import pairwise

import pytest

from pipeline import audit
from pipeline.rollout.controller import MAX_LOADING, tick
from pipeline.rollout.decision import DecisionResult, RolloutDecision, decide, decisions
from pipeline.rollout.evidence import LookRequest
from pipeline.rollout.fold import in_rollout
from pipeline.rollout.propose import champion, propose
from pipeline.rollout.record import (
    ApprovalRecord,
    Fingerprints,
    JudgedCandidate,
    Phase,
    RolloutStep,
    append,
    read_events,
    step_event,
)
from pipeline.rollout.router import Readiness
from pipeline.rollout.tallies import read_tally
from tests.pipeline.rollout.conftest import BASE, NAME, POLICY, World, iteration_over, model, version_of

ASKS = POLICY.model_copy(update={"needs_approval": True})
WARM = POLICY.model_copy(update={"keep_warm_s": 5000.0})


def decided(world: World, action: str, by: str = "operator", approval: ApprovalRecord | None = None) -> DecisionResult:
    decision = RolloutDecision(action=action, reason="a reason", by=by, approval=approval)
    return decide(world.ports(), decision, world.now)


def approval_of(world: World, by: str = "operator", **change: str) -> ApprovalRecord:
    proposal = world.state.proposal
    assert proposal is not None
    approval = ApprovalRecord(
        rollout=proposal.rollout, model_digest=proposal.version.model.digest, bundle_digest="bundle", by=by
    )
    return approval.model_copy(update=change)


def waiting(world: World, proposed_by: str = "launcher") -> None:
    iteration = iteration_over(BASE)
    judged = JudgedCandidate("PASS", "new", "bundle")
    propose(world.store, iteration, version_of("new", 1, iteration), judged, ASKS, world.now, proposed_by)
    for _ in range(5):
        world.tick(50.0)
    assert (world.state.phase, world.weight()) == (Phase.GATED, 0)


def slot(world: World, **change: object) -> None:
    world.router.ready = lambda m: Readiness(served_digest=m.digest, replicas=1).model_copy(update=change)


def test_without_an_approval_no_candidate_gets_traffic(world):
    waiting(world)
    state = world.state
    with pytest.raises(AssertionError, match="nobody approved"):
        append(world.store, NAME, state, step_event(state, 1.0, RolloutStep(Phase.SHIFTING, "")))
    split = world.router.read()
    assert split.canary is None, "nothing is loaded for a candidate that may be refused"
    assert not decided(world, "approve", approval=approval_of(world)).refused
    assert world.state.phase is Phase.APPROVED
    assert world.tick_until("promoted").approval == approval_of(world)


@pytest.mark.parametrize("field", ["rollout", "model_digest", "bundle_digest", "by"])
def test_an_approval_of_something_else_is_refused(world, field):
    waiting(world)
    wrong = approval_of(world, **{field: "another"})
    assert "does not fit" in decided(world, "approve", approval=wrong).refused
    state = world.state
    if field != "by":
        with pytest.raises(AssertionError, match="something else"):
            append(world.store, NAME, state, step_event(state, 1.0, RolloutStep(Phase.APPROVED, "", approval=wrong)))
    assert world.state.phase is Phase.GATED


def test_nobody_approves_their_own_candidate(world):
    waiting(world, proposed_by="Operator")
    assert "by who proposed it" in decided(world, "approve", approval=approval_of(world)).refused
    assert "names no rollout" in decided(world, "approve").refused
    assert world.state.phase is Phase.GATED


def test_an_approval_counts_once_and_not_after_an_abort(world):
    waiting(world)
    decided(world, "approve", approval=approval_of(world))
    assert "nothing is there to approve" in decided(world, "approve", approval=approval_of(world)).refused
    decided(world, "abort")
    assert "no rollout is active" in decided(world, "approve", approval=approval_of(world)).refused
    assert [e.detail["by"] for e in audit.entries(world.store) if e.kind == "approval"] == ["operator"]


def test_a_resume_before_the_approval_is_none(world):
    waiting(world)
    decided(world, "pause")
    assert world.state.phase is Phase.HELD
    decided(world, "resume")
    world.tick(50.0)
    assert world.state.phase is Phase.GATED


def test_copies_come_before_the_first_weight(world):
    world.propose("new", policy=POLICY.model_copy(update={"shadow_share": 0.5}))
    world.tick_until("shadowing")
    split = world.router.read()
    assert (split.canary_weight, split.shadow_share, split.canary) == (0, 0.5, model("new"))
    world.tick_until("shifting")
    assert world.state.looks > 0
    assert world.tick_until("promoted").promotions == 1


def test_harm_in_copies_ends_the_rollout_without_any_user(world):
    world.metrics.canary = {"quality": 0.3}
    world.propose("new", policy=POLICY.model_copy(update={"shadow_share": 0.5}))
    assert world.tick_until("rolled_back").quarantined == {"new": 1}
    assert all(e.phase is not Phase.SHIFTING for e in read_events(world.store, NAME))


def test_a_newer_candidate_takes_the_place_of_one_without_traffic(world):
    waiting(world)
    before = world.state.rollout
    assert not world.propose("newer", number=2, data="later").refused
    assert world.state.finished == {before: Phase.SUPERSEDED}
    world.tick(1.0)
    entry = next(e for e in audit.entries(world.store) if e.detail.get("action") == "supersede")
    assert entry.detail["successor"] == world.state.rollout


def test_an_older_candidate_takes_nobodys_place(world):
    world.propose("newer", number=2)
    assert world.propose("older", number=1, data="earlier").waits
    assert world.state.proposal.version.model.digest == "newer"


@pytest.mark.parametrize("stage", [0, 1])
def test_a_rollout_that_is_observed_is_waited_for(world, stage):
    world.propose("new")
    while (world.state.phase, world.state.stage) != (Phase.OBSERVING, stage):
        world.tick(50.0)
    assert world.propose("newer", number=2, data="later").waits
    with pytest.raises(AssertionError):
        append(world.store, NAME, world.state, step_event(world.state, 1.0, RolloutStep(Phase.SUPERSEDED, "")))


def test_what_is_held_past_its_first_weight_is_not_superseded(world):
    world.propose("new")
    while (world.state.phase, world.state.stage) != (Phase.OBSERVING, 1):
        world.tick(50.0)
    decided(world, "pause")
    assert (world.state.phase, world.weight()) == (Phase.HELD, 25)
    assert "held at 25%" in world.propose("newer", number=2, data="later").refused
    with pytest.raises(AssertionError, match="evidence"):
        append(world.store, NAME, world.state, step_event(world.state, 1.0, RolloutStep(Phase.SUPERSEDED, "")))


def test_a_slot_that_loads_is_waited_for_and_then_asked_about(world):
    slot(world, served_digest="", replicas=0, reason="loading")
    world.propose("new")
    for _ in range(10):
        world.tick(10.0)
    assert (world.state.phase, world.weight()) == (Phase.GATED, 0)
    assert world.router.read().canary == model("new"), "its slot has to know what to load"
    for _ in range(MAX_LOADING):
        world.tick(10.0)
    assert (world.state.phase, world.state.reason) == (Phase.HELD, "no server answers for new: loading")
    slot(world)
    decided(world, "resume")
    assert world.tick_until("promoted").promotions == 1


def test_a_slot_that_serves_another_model_gets_no_traffic(world):
    slot(world, served_digest="another")
    world.propose("new")
    assert "serves another" in world.tick_until("held").reason
    decided(world, "resume")
    world.tick(10.0)
    assert (world.state.phase, world.weight()) == (Phase.HELD, 0)


@pytest.mark.parametrize("phase", ["observing", "held"])
def test_a_slot_that_turns_wrong_loses_its_traffic(world, phase):
    world.propose("new")
    world.tick_until("observing")
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
    world.propose("new")
    world.tick_until("observing")
    slot(world, served_digest="", replicas=0)
    world.tick(10.0)
    assert world.state.phase is Phase.OBSERVING
    world.tick(10.0)
    assert (world.state.phase, world.weight(), world.state.quarantine) == (Phase.ROLLING_BACK, 0, False)


def test_a_slot_that_cannot_be_asked_is_not_taken_to_be_down(world):
    def unreachable(wanted):
        raise OSError("no route to host")

    world.propose("new")
    world.tick_until("observing")
    world.router.ready = unreachable
    for _ in range(6):
        world.tick(50.0)
    assert (world.state.phase, world.weight()) == (Phase.OBSERVING, 5)


def test_models_that_answer_alike_are_a_question_for_a_person(world):
    iteration = iteration_over(BASE)
    alike = Fingerprints(champion=("a", "b"), candidate=("a", "b"))
    judged, version = JudgedCandidate("PASS", "new", "bundle"), version_of("new", 1, iteration)
    propose(world.store, iteration, version, judged, POLICY, world.now, fingerprints=alike)
    assert "alike" in world.tick_until("held").reason
    assert world.weight() == 0
    decided(world, "resume")
    assert world.tick_until("promoted").promotions == 1


def test_the_champion_is_no_candidate(world):
    iteration = iteration_over(model("new"))
    judged = JudgedCandidate("PASS", "new", "bundle")
    refused = propose(world.store, iteration, version_of("new", 1, iteration), judged, POLICY, 0.0).refused
    assert "champion already" in refused


def test_each_tick_renews_the_lease_of_a_canary(world):
    world.propose("new")
    world.tick_until("observing")
    first = world.router.read().expires_at
    world.tick(50.0)
    assert (first, world.router.read().expires_at) == (world.now - 50 + POLICY.lease_s, world.now + POLICY.lease_s)
    decided(world, "abort")
    assert world.router.read().expires_at is None


def test_what_a_lease_that_ran_out_hid_is_no_evidence(world):
    world.propose("new")
    world.tick_until("observing")
    world.tick(POLICY.lease_s + 1)
    assert (world.state.misses, world.state.evidence.canary.requests) == (1, 0)
    assert world.tick_until("promoted", "held").phase is Phase.PROMOTED


def test_the_way_back_is_kept_warm_and_waited_for(world):
    world.propose("new", policy=WARM)
    world.tick_until("promoted")
    world.tick(1.0)
    split = world.router.read()
    assert (split.champion, split.warm, split.canary) == (model("new"), BASE, None)
    assert "stays loaded" in world.propose("next", number=2).refused
    world.now += 5000.0
    assert not world.propose("next", number=2).refused


def test_a_promotion_can_be_rolled_back_while_the_way_is_warm(world):
    world.propose("new", policy=WARM)
    world.tick_until("promoted")
    assert decisions(world.state, world.now) == ("rollback",)
    done = decided(world, "rollback")
    assert (done.state.phase, done.state.quarantined) == (Phase.ROLLED_BACK, {"new": 1})
    split = world.router.read()
    assert (split.champion, split.champion_weight, split.canary_weight) == (BASE, 100, 0)
    assert champion(world.store, NAME) is None
    late = JudgedCandidate("PASS", "late", "bundle")
    iteration = iteration_over(model("new"), 1)
    refused = propose(world.store, iteration, version_of("late", 2, iteration), late, POLICY, world.now).refused
    assert "which was rolled back" in refused


def test_a_promotion_is_not_rolled_back_onto_an_empty_slot(world):
    world.propose("new", policy=WARM)
    world.tick_until("promoted")
    slot(world, served_digest="", replicas=0)
    assert "no way back" in decided(world, "rollback").refused
    slot(world)
    world.now += 5001.0
    assert "not kept loaded" in decided(world, "rollback").refused
    assert world.router.read().champion == model("new")


def test_a_rollback_by_a_person_is_final(world):
    world.propose("new")
    world.tick_until("observing")
    done = decided(world, "rollback")
    assert (done.state.phase, done.state.quarantined, world.weight()) == (Phase.ROLLED_BACK, {"new": 1}, 0)


def test_nothing_is_learned_from_a_running_or_quarantined_canary(world):
    world.metrics.canary = {"quality": 0.2}
    assert in_rollout(world.store, NAME) == frozenset()
    world.propose("bad")
    assert in_rollout(world.store, NAME) == {"bad"}
    world.tick_until("rolled_back")
    world.metrics.canary = {}
    world.propose("good", number=2)
    assert in_rollout(world.store, NAME) == {"bad", "good"}
    world.tick_until("promoted")
    assert in_rollout(world.store, NAME) == {"bad"}


def test_a_weight_that_is_raised_again_and_again_is_held(world):
    world.propose("new", policy=POLICY.model_copy(update={"dwell_s": (1e6, 1e6, 1e6)}))
    world.tick_until("observing")
    for _ in range(4):
        split = world.router.read()
        world.router.apply(split.model_copy(update={"canary_weight": 60, "champion_weight": 40}))
        world.tick(50.0)
        assert world.weight() == 5, "it is put back each time"
        world.tick(50.0)
    assert (world.state.phase, world.weight()) == (Phase.HELD, 5)


def test_a_manual_weight_is_on_the_audit_log(world):
    world.propose("new")
    world.tick_until("observing")
    split = world.router.read()
    world.router.apply(split.model_copy(update={"canary_weight": 2, "champion_weight": 98}))
    world.tick(50.0)
    assert (world.state.phase, world.weight()) == (Phase.HELD, 2)
    entry = [e for e in audit.entries(world.store) if e.kind == "weight"][-1]
    assert (entry.detail["weight"], entry.detail["action"]) == (2, "hold")
    decided(world, "resume")
    assert world.weight() == 5


def test_a_router_that_routes_otherwise_is_held(world):
    world.propose("new")
    world.tick_until("observing")
    world.metrics.really = lambda split: split.model_copy(update={"canary_weight": 50, "champion_weight": 50})
    world.tick(50.0)
    assert (world.state.phase, "requests at 5%" in world.state.reason) == (Phase.HELD, True)


def test_a_clock_that_is_behind_is_a_miss_and_says_so(world):
    world.propose("new", policy=POLICY.model_copy(update={"dwell_s": (1e6, 1e6, 1e6)}))
    world.tick_until("observing")
    world.tick(50.0)
    counted = world.state.evidence
    world.tick(-86_400.0)
    assert (world.state.misses, "clock" in world.state.reason, world.state.evidence) == (1, True, counted)
    world.tick(86_450.0)
    assert "lease" in world.state.reason, "by the wrong clock it was over at once"
    world.tick(50.0)
    assert (world.state.misses, world.state.evidence.canary.requests) == (0, 2 * counted.canary.requests)
    windows = [(look.window_start, look.window_end) for _, look in world.metrics.given]
    assert all(one[1] <= other[0] for one, other in pairwise(windows)), "no window is counted twice"


def test_a_tally_is_kept_by_look_and_removed_at_the_end(world):
    world.propose("new", policy=POLICY.model_copy(update={"dwell_s": (300.0, 0.0, 0.0)}))
    world.tick_until("observing")
    for _ in range(3):
        world.tick(50.0)
    folder = world.store.path("rollout", NAME, "tallies")
    assert [p.stem for p in folder.glob("*.json")] == [world.state.tally]
    tally = read_tally(world.store, NAME, world.state.tally)
    assert tally is not None and tally.canary[""].requests == 3 * 2000
    world.tick_until("promoted")
    assert list(folder.glob("*.json")) == []


@pytest.mark.parametrize("how", ["gone", "changed"])
def test_a_tally_that_is_lost_starts_the_evidence_over(world, how):
    world.propose("new", policy=POLICY.model_copy(update={"dwell_s": (300.0, 0.0, 0.0)}))
    world.tick_until("observing")
    world.tick(50.0)
    path = world.store.path("rollout", NAME, "tallies", f"{world.state.tally}.json")
    if how == "gone":
        path.unlink()
    else:
        path.write_text(path.read_text().replace("2000", "9999"))
    world.tick(50.0)
    assert world.state.evidence.canary.requests == 2000
    assert "tally is gone" in world.state.reason


def test_people_are_told_by_each_tick(world):
    world.propose("new")
    world.tick(50.0)
    assert world.told == [world.now]


def test_equal_arms_that_would_not_look_equal_are_asked_about(world):
    world.propose("new")
    ports = replace(world.ports(), aa=lambda: "an A/A test alarms")
    for _ in range(3):
        tick(ports, world.now)
    assert (world.state.phase, world.state.reason, world.weight()) == (Phase.HELD, "an A/A test alarms", 0)
    decided(world, "resume")
    tick(ports, world.now)
    assert world.state.phase is Phase.SHIFTING


def shifting_to(world: World, stage: int) -> None:
    while (world.state.phase, world.state.stage) != (Phase.SHIFTING, stage):
        world.tick(50.0)


def test_harm_while_the_weight_is_not_confirmed_is_seen(world):
    world.propose("new")
    shifting_to(world, 1)
    world.metrics.canary = {"quality": 0.1}

    def unreachable():
        raise OSError("connection refused")

    world.router.read = unreachable
    world.tick(50.0)
    del world.router.read
    assert (world.state.phase, world.weight()) == (Phase.ROLLING_BACK, 0)


def lowered(world: World, weight: int) -> None:
    split = world.router.read()
    world.router.apply(split.model_copy(update={"canary_weight": weight, "champion_weight": 100 - weight}))


@pytest.mark.parametrize("weight", [0, 3, 5])
def test_a_weight_lowered_while_it_rises_is_obeyed(world, weight):
    world.propose("new")
    shifting_to(world, 1)
    lowered(world, weight)
    world.tick(50.0)
    assert (world.state.phase, world.weight()) == (Phase.HELD, weight)


def test_a_held_weight_that_is_lowered_further_is_obeyed(world):
    world.propose("new")
    world.tick_until("observing")
    decided(world, "pause")
    for weight in (3, 0):
        lowered(world, weight)
        for _ in range(3):
            world.tick(50.0)
        assert (world.state.phase, world.weight(), world.state.canary_weight) == (Phase.HELD, weight, weight)


def test_a_weight_lowered_within_a_tick_is_obeyed(world):
    world.propose("new", policy=POLICY.model_copy(update={"dwell_s": (1e6, 1e6, 1e6)}))
    world.tick_until("observing")
    read = world.router.read

    def then_lowered():
        split = read()
        del world.router.read
        lowered(world, 0)
        return split

    world.router.read = then_lowered
    world.tick(50.0)
    assert world.weight() == 0
    world.tick(50.0)
    assert (world.state.phase, world.weight()) == (Phase.HELD, 0)


def test_nothing_is_promoted_from_a_slot_that_cannot_be_asked(world):
    def unreachable(wanted):
        raise OSError("no route to host")

    world.propose("new")
    while (world.state.phase, world.state.stage) != (Phase.OBSERVING, 2):
        world.tick(50.0)
    world.router.ready = unreachable
    for _ in range(5):
        world.tick(50.0)
    assert (world.state.phase, world.weight()) == (Phase.OBSERVING, 95)
    slot(world)
    world.tick_until("promoted")


def test_a_weight_that_cannot_be_read_back_is_taken_back_unread(world):
    world.propose("new")
    shifting_to(world, 1)

    def unreachable():
        raise OSError("connection refused")

    world.router.read = unreachable
    world.tick_until("held")
    del world.router.read
    assert world.weight() == 5


def test_grades_that_are_late_stop_the_dwell(world):
    world.propose("new")
    world.tick_until("observing")
    began = world.now
    world.metrics.spoil = lambda look: look.model_copy(update={"graded_until": min(look.graded_until, began + 20)})
    for _ in range(8):
        world.tick(50.0)
    assert (world.state.phase, world.state.dwell_s) == (Phase.OBSERVING, 20.0)
    world.metrics.spoil = lambda look: look
    world.tick(50.0)
    assert world.state.phase is Phase.SHIFTING


def test_grades_are_asked_for_from_where_the_window_starts(world):
    world.propose("new", policy=POLICY.model_copy(update={"dwell_s": (1e6, 1e6, 1e6)}))
    world.tick_until("observing")
    world.tick(86_400.0)
    asked: list[LookRequest] = []
    look = world.metrics.look
    world.metrics.look = lambda split, request: asked.append(request) or look(split, request)
    world.tick(-86_400.0)
    world.tick(60.0)
    assert asked[-1].graded_since is not None
    assert asked[-1].graded_since <= asked[-1].since <= world.now


def test_copies_that_fall_short_are_held_before_any_user(world):
    world.metrics.canary = {"quality": 0.67}
    world.propose("new", policy=POLICY.model_copy(update={"shadow_share": 0.1}))
    assert "not proven to be less" in world.tick_until("held").reason
    assert world.weight() == 0


def test_few_copies_are_waited_for(world):
    world.metrics.requests = 100
    world.propose("new", policy=POLICY.model_copy(update={"shadow_share": 0.1}))
    for _ in range(10):
        world.tick(50.0)
    assert world.state.phase is Phase.SHADOWING
