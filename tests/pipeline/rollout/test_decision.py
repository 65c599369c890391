from dataclasses import replace

import pytest

from pipeline.core import audit
from pipeline.rollout.controller import tick
from pipeline.rollout.decision import RolloutDecision, abort, decide, decisions
from pipeline.rollout.record import ErasureBlock, Phase, RolloutState, block, read_events
from tests.pipeline.rollout.conftest import NAME, POLICY, World
from tests.pipeline.rollout.reports import proposal


def decided(world: World, action: str, rollout: str = "", reason: str = "a reason", by: str = "operator"):
    decision = RolloutDecision(action=action, reason=reason, by=by, rollout=rollout)
    return decide(world.ports(), decision, world.now)


def held(world: World, digest: str = "new") -> None:
    world.metrics.spoil = lambda look: None
    world.propose(digest)
    world.tick_until("held")


@pytest.mark.parametrize("phase", ["proposed", "gated", "shifting", "observing", "held"])
def test_an_abort_has_moved_the_traffic_when_it_returns(world, phase):
    if phase == "held":
        world.metrics.spoil = lambda look: None
    world.propose("new")
    world.tick_until(phase)
    done = decided(world, "abort")
    assert (done.refused, done.state.phase, world.weight()) == ("", Phase.ABORTED, 0)
    assert world.state.past.quarantined == {}


def test_a_rollback_before_the_promotion_needs_no_way_back(world):
    world.observe()
    done = decided(world, "rollback")
    assert (done.refused, done.state.phase, world.weight()) == ("", Phase.ROLLED_BACK, 0)
    assert list(world.state.past.quarantined) == ["new"]


def test_an_abort_of_another_rollout_or_of_none_changes_nothing(world):
    assert not abort(world.store, NAME, "enough", world.now)
    world.observe()
    assert not abort(world.store, NAME, "enough", world.now, rollout="ffffffffffff")
    assert world.state.phase is Phase.OBSERVING
    assert abort(world.store, NAME, "enough", world.now, rollout=world.state.rollout)
    assert read_events(world.store, NAME)[-1].action is None, "it was no person's decision"


def test_what_will_never_be_let_in_does_not_wait(world):
    assert not world.propose("new", verdict="FAIL").waits
    world.metrics.canary = {"quality": 0.2}
    world.propose("bad")
    world.tick_until("rolled_back")
    refused = world.propose("bad", data="again")
    assert refused.refused
    assert not refused.waits


def test_a_resume_keeps_the_evidence_and_starts_the_dwell_over(world):
    world.observe()
    world.tick(90.0)
    world.metrics.spoil = lambda look: None
    world.tick_until("held")
    before = world.state.watch.evidence
    assert before.canary.graded == 2000
    decided(world, "resume")
    assert (world.state.watch.evidence.canary, world.state.watch.evidence.champion) == (before.canary, before.champion)
    assert (world.state.watch.dwell_s, world.state.watch.misses) == (0.0, 0)
    world.metrics.spoil = lambda look: look
    assert world.tick_until("promoted").past.promotions == 1


def test_the_registry_follows_a_decision_at_once(world):
    held(world)
    world.registry.aliases.clear()
    decided(world, "resume")
    assert world.registry.aliases == {"challenger": 1}


def test_only_a_held_rollout_can_be_resumed(world):
    for action in ("resume", "rollback"):
        assert decided(world, action).refused == "no rollout is active"
    world.observe()
    epoch = world.state.epoch
    assert "is observing, and nothing is there to resume" in decided(world, "resume").refused
    assert "is observing, and nothing is there to approve" in decided(world, "approve").refused
    assert world.state.epoch == epoch
    world.tick_until("promoted")
    for action in ("resume", "abort"):
        assert "no rollout is active: the last one" in decided(world, action).refused
        assert "promoted" in decided(world, action).refused


def test_a_decision_about_another_rollout_is_refused(world):
    held(world)
    epoch, rollout = world.state.epoch, world.state.rollout
    for other in ("ffffffffffff", rollout[:6], "other"):
        assert f"{other} is not the active rollout, which is {rollout}" in decided(world, "abort", other).refused
    assert world.state.epoch == epoch
    assert decided(world, "abort", rollout).state.phase is Phase.ABORTED


@pytest.mark.parametrize(("reason", "by"), [(" ", "operator"), ("a reason", "")])
def test_a_decision_without_a_reason_or_a_name_is_refused(world, reason, by):
    held(world)
    with pytest.raises(ValueError, match="Give one"):
        decided(world, "abort", reason=reason, by=by)
    assert world.state.phase is Phase.HELD


def test_who_decided_and_why_is_in_event_and_audit_log(world):
    held(world)
    decided(world, "resume", reason="metrics are back")
    world.tick_until("held")
    decided(world, "abort", reason="they were not")
    written = [e for e in audit.entries(world.store) if e.kind == "decision"]
    assert [(e.detail["action"], e.detail["by"], e.detail["reason"]) for e in written] == [
        ("resume", "operator", "metrics are back"),
        ("abort", "operator", "they were not"),
    ]
    by_people = [e for e in read_events(world.store, NAME) if e.by]
    assert [e.reason for e in by_people] == ["metrics are back", "they were not"]
    assert [(e.subject, e.detail["epoch"]) for e in written] == [(f"{e.rollout}/{e.epoch}", e.epoch) for e in by_people]
    assert audit.verify(world.store).flaw == ""


def test_a_decision_whose_process_died_is_audited_later(world):
    held(world)
    assert abort(world.store, NAME, "enough", world.now, "operator")
    assert all(e.kind != "decision" for e in audit.entries(world.store))
    world.tick(1.0)
    world.tick(1.0)
    written = [(e.kind, e.detail["by"]) for e in audit.entries(world.store)]
    assert written.count(("decision", "operator")) == 1


def test_two_controllers_audit_a_decision_once(world, monkeypatch):
    """Each has read the audit log before the other writes to it."""
    monkeypatch.setattr(audit, "written", lambda store: frozenset())
    held(world)
    decided(world, "abort")
    assert [e.kind for e in audit.entries(world.store)] == ["weight", "hold", "decision"]


def test_an_abort_that_is_not_obeyed_is_taken_on_by_the_next_one(world):
    world.observe()
    applied = world.router.apply
    world.router.apply = lambda split: None
    assert decided(world, "abort").state.phase is Phase.ROLLING_BACK
    assert world.weight() == 5
    assert "nothing is there to pause" in decided(world, "pause").refused
    assert [world.tick(1.0).state.watch.misses for _ in range(3)] == [2, 3, 3], "the log does not grow by that"
    world.router.apply = applied
    done = decided(world, "abort", reason="again")
    assert (done.refused, done.state.phase, world.weight()) == ("", Phase.ABORTED, 0)
    assert [each.reason for each in read_events(world.store, NAME) if each.by] == ["a reason"]


def test_a_decision_that_was_overtaken_is_made_on_what_is_now(world):
    """Between the read and the write of a resume, another controller proves harm."""
    held(world)
    create = world.store.create

    def overtaken(name, record):
        world.store.create = create
        world.metrics.spoil, world.metrics.canary = lambda look: look, {"quality": 0.2}
        tick(world.ports(), world.now + 60)
        return create(name, record)

    world.store.create = overtaken
    assert "rolling_back, and nothing is there to resume" in decided(world, "resume").refused
    assert (world.state.phase, world.weight()) == (Phase.ROLLING_BACK, 0)


OUT = ("abort", "rollback")


@pytest.mark.parametrize(
    ("phase", "approvers", "choices"),
    [
        (Phase.IDLE, (), ()),
        (Phase.PROPOSED, (), OUT),
        (Phase.GATED, (), ("pause", *OUT)),
        (Phase.GATED, ("ada",), ("approve", "pause", *OUT)),
        (Phase.OBSERVING, ("ada",), ("pause", *OUT)),
        (Phase.HELD, ("ada",), ("resume", *OUT)),
        (Phase.ROLLING_BACK, (), ()),
        (Phase.ABORTED, (), ("reopen",)),
        (Phase.ROLLED_BACK, (), ()),
    ],
)
def test_what_a_person_may_decide(phase, approvers, choices):
    opened = proposal().model_copy(update={"policy": POLICY.model_copy(update={"approvers": approvers})})
    assert decisions(RolloutState(phase=phase, proposal=opened), 0.0) == choices


def test_an_aborted_candidate_is_reopened_by_the_policy_of_now(world):
    world.propose("new")
    world.tick_until("observing")
    rollout, short = world.state.rollout, POLICY.model_copy(update={"dwell_s": (10.0, 20.0, 10.0)})
    assert "is observing, and nothing is there to reopen" in decided(world, "reopen").refused
    decided(world, "abort")
    ports = replace(world.ports(), policy_now=lambda iteration: short)
    reopen = RolloutDecision(action="reopen", reason="the dwells are mended", by="ada", rollout=rollout)
    done = decide(ports, reopen, world.now)
    assert (done.refused, done.state.phase, done.state.rollout, world.weight()) == ("", Phase.PROPOSED, rollout, 0)
    assert (done.state.opened.policy, done.state.opened.proposed_by) == (short, "ada")
    assert [*audit.entries(world.store)][-1].detail["action"] == "reopen"
    assert world.tick_until("promoted", every_s=5.0).past.finished == {rollout: Phase.PROMOTED}


@pytest.mark.parametrize("verdict", ["rolled back", "blocked"])
def test_a_verdict_on_the_model_is_not_reopened(world, verdict):
    world.observe()
    decided(world, "rollback" if verdict == "rolled back" else "abort")
    if verdict == "rolled back":
        assert "is rolled_back" in decided(world, "reopen").refused
        return
    block(world.store, ErasureBlock(proof="p1", digests=("new",), iterations=()))
    assert decided(world, "reopen").refused == ""
    assert "is blocked" in world.tick_until("aborted").reason and world.weight() == 0


def test_a_way_back_ends_when_the_policy_says(world):
    world.propose("new", policy=POLICY.model_copy(update={"keep_warm_s": 500.0}))
    world.now = world.tick_until("promoted").warm_until
    assert "is not kept loaded any more" in decided(world, "rollback").refused
    assert decisions(world.state, world.now) == ()
    world.now -= 1.0
    assert decisions(world.state, world.now) == ("rollback",)
    assert "other is not the active rollout" in decided(world, "rollback", "other").refused
    assert decided(world, "rollback").refused == ""
