"""Each guard by itself: what the record refuses to hold, what traffic is wanted, and whose wish a weight is."""

import pytest

from pipeline.rollout.evidence import LiveEvidence
from pipeline.rollout.fold import RolloutLog, adds_s, models_to_serve
from pipeline.rollout.reconcile import audited, lowered_by_hand, reconcile, wanted_split
from pipeline.rollout.record import (
    LookResult,
    PastRollouts,
    Phase,
    RolloutEvent,
    RolloutState,
    RolloutStep,
    StageWatch,
    append,
    read_events,
    step_event,
)
from pipeline.rollout.router import Readiness, Split, Unsettled
from tests.pipeline.rollout.conftest import BASE, NAME, POLICY, decided
from tests.pipeline.rollout.reports import proposal

GIVEN = proposal(proposed_by="ada")
FREE = GIVEN.model_copy(update={"policy": POLICY})
APPROVAL = {"action": "approve", "by": "bob"}


def state(phase: Phase, given=FREE, **fields) -> RolloutState:
    return RolloutState(epoch=4, requested_epoch=4, phase=phase, proposal=given, **fields)


def event(phase: Phase, epoch: int = 5, **fields) -> RolloutEvent:
    return RolloutEvent(epoch=epoch, at=1.0, rollout=GIVEN.rollout, phase=phase, **fields)


REFUSED = {
    "a gap": (state(Phase.GATED), event(Phase.SHIFTING, epoch=6), "does not follow"),
    "no such step": (state(Phase.PROPOSED), event(Phase.SHIFTING), "does not lead to"),
    "a terminal phase left": (state(Phase.ROLLED_BACK), event(Phase.OBSERVING), "does not lead to"),
    "a rollback taken back": (state(Phase.ROLLING_BACK), event(Phase.HELD), "does not lead to"),
    "no proposal": (state(Phase.PROMOTED), event(Phase.PROPOSED), "opens a rollout"),
    "a proposal in between": (state(Phase.GATED), event(Phase.SHIFTING, proposal=FREE), "opens a rollout"),
    "a stage skipped": (state(Phase.OBSERVING, confirmed_stage=0), event(Phase.SHIFTING, stage=2), "skipped"),
    "the first stage skipped": (state(Phase.GATED), event(Phase.SHIFTING, stage=1), "skipped"),
    "a canary with evidence": (state(Phase.HELD, weight_in_force=25), event(Phase.SUPERSEDED), "not superseded"),
    "a foreign approval": (
        state(Phase.GATED, GIVEN),
        event(Phase.APPROVED, **APPROVAL).model_copy(update={"rollout": "other"}),
        "something else",
    ),
    "an approval of the proposer": (
        state(Phase.GATED, GIVEN),
        event(Phase.APPROVED, action="approve", by="ada"),
        "somebody who may not",
    ),
    "an approval without a name": (
        state(Phase.GATED, GIVEN),
        event(Phase.APPROVED, action="approve"),
        "somebody who may not",
    ),
    "no approval": (state(Phase.GATED, GIVEN), event(Phase.APPROVED, by="bob"), "not approved"),
    "traffic without approval": (state(Phase.GATED, GIVEN), event(Phase.SHIFTING), "not approved"),
    "a hold without approval resumed": (state(Phase.HELD, GIVEN), event(Phase.SHIFTING), "not approved"),
}
TAKEN = {
    "the next stage": (state(Phase.OBSERVING, confirmed_stage=0), event(Phase.SHIFTING, stage=1)),
    "a stage again": (state(Phase.HELD, confirmed_stage=1), event(Phase.SHIFTING, stage=0)),
    "a canary without traffic": (state(Phase.GATED), event(Phase.SUPERSEDED)),
    "one held at its first weight": (state(Phase.HELD, weight_in_force=5), event(Phase.SUPERSEDED)),
    "an approval": (state(Phase.GATED, GIVEN), event(Phase.APPROVED, **APPROVAL)),
    "traffic after it": (state(Phase.APPROVED, GIVEN, approved_by="bob"), event(Phase.SHIFTING)),
    "traffic that nobody approves": (state(Phase.GATED), event(Phase.SHIFTING)),
    "a way out without approval": (state(Phase.GATED, GIVEN), event(Phase.ROLLING_BACK)),
    "a new rollout": (state(Phase.PROMOTED), event(Phase.PROPOSED, proposal=FREE)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_the_record_refuses(world, case):
    before, following, words = REFUSED[case]
    with pytest.raises(AssertionError, match=words):
        append(world.store, NAME, before, following)
    assert not world.store.path("rollout", NAME, "events").exists()


@pytest.mark.parametrize("case", TAKEN)
def test_the_record_takes(world, case):
    before, following = TAKEN[case]
    assert append(world.store, NAME, before, following)
    assert not append(world.store, NAME, before, following), "somebody else's took its place"


@pytest.mark.parametrize(("given", "stage"), [(-1, 1), (0, 0), (2, 2)])
def test_a_step_that_names_no_stage_stays_at_its_own(given, stage):
    step = RolloutStep(phase=Phase.SHIFTING, stage=given)
    assert step_event(state(Phase.HELD, stage=1), 1.0, step).stage == stage


def test_a_log_with_a_gap_is_refused_by_name(world):
    world.observe()
    world.store.path("rollout", NAME, "events", "000002.json").unlink()
    world.store.path("rollout", NAME, "events", "000009.json").write_text("{}")
    with pytest.raises(ValueError, match=r"000002\.json is missing, though later events are there"):
        read_events(world.store, NAME)


def test_a_way_back_is_warm_after_a_promotion_alone():
    warm = FREE.model_copy(update={"policy": POLICY.model_copy(update={"keep_warm_s": 50.0})})
    promoted = state(Phase.PROMOTED, warm, past=PastRollouts(champion_since=100.0))
    assert promoted.warm_until == 150.0
    assert state(Phase.ABORTED, warm, past=PastRollouts(champion_since=100.0)).warm_until == 0.0
    assert wanted_split(promoted, 149.0).warm == FREE.champion
    assert wanted_split(promoted, 150.0).warm is None
    assert wanted_split(promoted, 149.0).champion == FREE.version.model
    own = [FREE.version.model]
    assert [models_to_serve(promoted, own[0], now) for now in (149.0, 150.0)] == [[*own, FREE.champion], own]
    assert models_to_serve(state(Phase.HELD, warm), FREE.champion, 149.0) == [FREE.champion, *own]
    assert wanted_split(state(Phase.ABORTED, warm), 0.0).champion == FREE.champion


def test_only_a_canary_with_requests_has_a_lease():
    assert wanted_split(state(Phase.OBSERVING, offered=True), 10.0).expires_at == 10.0 + POLICY.lease_s
    assert wanted_split(state(Phase.GATED), 10.0).expires_at is None


@pytest.mark.parametrize(
    ("phase", "given", "offered", "loaded"),
    [
        (Phase.PROPOSED, FREE, False, False),
        (Phase.GATED, FREE, False, True),
        (Phase.GATED, GIVEN, False, False),
        (Phase.APPROVED, GIVEN, False, True),
        (Phase.HELD, FREE, False, False),
        (Phase.HELD, FREE, True, True),
        (Phase.ROLLING_BACK, FREE, True, True),
        (Phase.ROLLED_BACK, FREE, True, False),
        (Phase.PROMOTED, FREE, True, False),
    ],
)
def test_a_candidate_is_loaded_while_it_may_get_requests(phase, given, offered, loaded):
    assert (wanted_split(state(phase, given, offered=offered), 0.0).canary is not None) is loaded


def in_force(weight: int, epoch: int = 4, rollout: str = GIVEN.rollout) -> Split:
    fields = {"champion": FREE.champion, "canary": FREE.version.model, "rollout": rollout, "epoch": epoch}
    return Split(**fields, champion_weight=100 - weight, canary_weight=weight)


@pytest.mark.parametrize(
    ("phase", "read", "by_hand"),
    [
        (Phase.OBSERVING, in_force(0), True),
        (Phase.OBSERVING, in_force(5), False),
        (Phase.OBSERVING, in_force(25), False),
        (Phase.OBSERVING, in_force(0, rollout="before"), False),
        (Phase.OBSERVING, None, False),
        (Phase.OBSERVING, Unsettled(reason="lags"), False),
        (Phase.OBSERVING, Unsettled(reason="lags", asked=in_force(5)), False),
        (Phase.OBSERVING, Unsettled(reason="lags", asked=in_force(0)), True),
        (Phase.SHIFTING, in_force(0, epoch=3), False),
        (Phase.SHIFTING, in_force(0, epoch=4), True),
    ],
)
def test_a_weight_below_what_was_asked_for_is_a_wish(phase, read, by_hand):
    asked = state(phase, offered=True)
    assert lowered_by_hand(read, asked, wanted_split(asked, 0.0)) is by_hand


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"served_digest": "", "replicas": 0}, "no server answers"),
        ({"served_digest": "another"}, "serves another"),
        ({"reason": "warms"}, "is not ready: warms"),
    ],
)
def test_no_weight_rises_onto_a_slot_that_went_since(world, change, words):
    """It was ready when the weight was decided, and is not when the router is asked."""
    world.observe()
    asked = world.router.ready

    def ready(of):
        went = world.state.phase is Phase.SHIFTING and of != BASE
        return asked(of).model_copy(update=change) if went else asked(of)

    world.router.ready = ready
    world.tick_until("shifting")
    assert world.weight() == 5
    assert any("The weight stays at 5%" in error for error in world.tick(1.0).errors) and world.weight() == 5
    assert words in world.state.reason


@pytest.mark.parametrize(
    ("phase", "fields", "asked"),
    [
        (Phase.SHIFTING, {"stage": 0, "confirmed_stage": -1}, []),
        (Phase.SHIFTING, {"stage": 1, "confirmed_stage": 0}, []),
        (Phase.OBSERVING, {"stage": 1, "confirmed_stage": 1}, []),
        (Phase.HELD, {"stage": 1, "confirmed_stage": 1, "weight_in_force": 25}, []),
        (Phase.HELD, {"stage": 1, "confirmed_stage": 0, "weight_in_force": 5}, [5]),
        (Phase.ROLLING_BACK, {"stage": 1, "confirmed_stage": 1}, [0]),
    ],
)
def test_an_unread_router_is_asked_for_less_alone(world, monkeypatch, phase, fields, asked):
    applied = []
    world.router.apply = lambda split: applied.append(split.canary_weight)

    def away():
        raise OSError("no route to host")

    world.router.read = away
    log = RolloutLog(state=state(phase, offered=True, **fields))
    monkeypatch.setattr("pipeline.rollout.reconcile.read_log", lambda *_, **__: log)
    done = reconcile(world.ports(), 1.0)
    assert applied == asked
    assert any("no route to host" in error for error in done.errors)


def test_the_weight_of_another_rollout_is_not_its_own(world, monkeypatch):
    """So its first weight rises from 0, and waits for the slot; what is asked for meanwhile is the epoch before's."""
    applied = []
    world.router.read = lambda: in_force(50, rollout="before")
    world.router.apply = lambda split: applied.append((split.epoch, split.canary_weight, split.champion_weight))
    world.router.ready = lambda of: Readiness()
    log = RolloutLog(state=state(Phase.SHIFTING, offered=True))
    monkeypatch.setattr("pipeline.rollout.reconcile.read_log", lambda *_, **__: log)
    assert "The weight stays at 0%, because no server answers" in reconcile(world.ports(), 1.0).errors[0]
    assert applied == [(3, 0, 100)]


@pytest.mark.parametrize(
    ("window", "seconds"),
    [
        ((100.0, 150.0), 50.0),
        ((80.0, 150.0), 50.0),  # what was watched before counts once
        ((100.0, 900.0), 100.0),  # at most one look
        ((90.0, 95.0), 0.0),
    ],
)
def test_what_a_look_adds_to_the_dwell(window, seconds):
    look = LookResult(window_start=window[0], window_end=window[1], judged_until=window[1], evidence=LiveEvidence())
    seen = state(Phase.OBSERVING, watch=StageWatch(watched_until=100.0))
    assert adds_s(seen, look) == seconds


def held(world, weight: int) -> None:
    world.observe(dwell_s=(1e6, 1e6, 1e6))
    world.metrics.spoil = lambda look: None
    world.tick_until("held", every_s=10.0)
    world.metrics.spoil = lambda look: look
    assert world.weight() == weight


def test_a_weight_given_to_a_canary_held_at_0_is_watched(world):
    held(world, 5)
    world.set_weight(0)
    world.tick(10.0)
    assert world.state.canary_weight == 0 and "somebody took" in world.state.reason
    looks = world.state.watch.looks
    world.set_weight(50)
    world.metrics.canary = {"error_rate": 1.0, "graded": 0.0}
    world.tick(10.0)
    assert world.state.watch.looks == looks + 1 and world.weight() == 0
    assert not decided(world, "resume").refused or world.state.phase is Phase.ROLLING_BACK


@pytest.mark.parametrize(
    ("before", "phase", "fields", "entry"),
    [
        (Phase.GATED, Phase.SHIFTING, {}, ("weight", "raise")),
        (Phase.OBSERVING, Phase.SHIFTING, {"stage": 1}, ("weight", "raise")),
        (Phase.HELD, Phase.SHIFTING, {}, None),
        (Phase.HELD, Phase.SHIFTING, {"action": "resume"}, ("decision", "resume")),
        (Phase.GATED, Phase.APPROVED, {"action": "approve"}, ("approval", "approve")),
        (Phase.OBSERVING, Phase.OBSERVING, {}, None),
        (Phase.OBSERVING, Phase.HELD, {}, ("hold", "hold")),
        (Phase.OBSERVING, Phase.HELD, {"weight": 0}, ("weight", "hold")),
        (Phase.HELD, Phase.HELD, {}, None),
        (Phase.OBSERVING, Phase.ROLLING_BACK, {}, ("rollback", "abort")),
        (Phase.OBSERVING, Phase.ROLLING_BACK, {"quarantine": True}, ("rollback", "quarantine")),
        (Phase.GATED, Phase.SUPERSEDED, {}, ("decision", "supersede")),
        (Phase.OBSERVING, Phase.PROMOTED, {}, ("promotion", "")),
    ],
)
def test_what_is_decided_is_audited_and_no_look(before, phase, fields, entry):
    event = RolloutEvent(epoch=5, at=1.0, rollout="r", phase=phase, **fields)
    assert audited(before, event) == entry


def test_each_stage_has_evidence_of_its_own(world):
    world.observe()
    graded = 0.0
    for _ in range(2):
        graded = max(graded, world.state.watch.evidence.canary.graded)
        world.tick(50.0)
    assert (world.state.phase, graded) == (Phase.SHIFTING, 2000)
    seen = world.state.watch.evidence
    assert (seen.canary.graded, seen.earlier.weight) == (0, 4000 * 76_000 / 80_000), "but for what is pooled"
