"""What a rollout's log adds up to. Pure but for reading it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from pipeline.core.storage import Store
from pipeline.rollout.record import (
    TERMINAL,
    LookResult,
    ModelVersion,
    Phase,
    RolloutEvent,
    RolloutState,
    read_events,
)


def fold(events: Iterable[RolloutEvent]) -> RolloutState:
    """The state after these events, which are in epoch order from 1. Pure."""
    return reduce(_after, events, RolloutState())


def read_state(store: Store, model_name: str) -> RolloutState:
    return fold(read_events(store, model_name))


def in_rollout(store: Store, model_name: str) -> dict[str, int]:
    """Digest and version of the canary that runs and of all that were quarantined: nothing is learned from their
    answers."""
    state = read_state(store, model_name)
    if state.proposal is None or not state.active:
        return state.quarantined
    return {**state.quarantined, state.proposal.version.model.digest: state.proposal.version.version}


def _after(state: RolloutState, event: RolloutEvent) -> RolloutState:
    assert event.epoch == state.epoch + 1, f"event {event.epoch} follows {state.epoch} in the log"
    moved = (event.phase, event.stage) != (state.phase, state.stage) or event.proposal is not None
    moved = moved or event.weight is not None
    waits = state.phase is event.phase and event.phase in (Phase.HELD, Phase.ROLLING_BACK)
    change: dict[str, object] = {
        "epoch": event.epoch,
        "turn": event.epoch if moved else state.turn,
        "phase": event.phase,
        "stage": event.stage,
        # what is seen while it waits is not why it waits
        "reason": state.reason if waits and event.weight is None else event.reason,
    }
    if event.proposal is not None:
        kept = {"champion", "champion_since", "previous", "promotions", "quarantined", "finished"}
        state = RolloutState(**{key: getattr(state, key) for key in kept})
        return state.model_copy(update={**change, "proposal": event.proposal})
    assert state.proposal is not None, "an event belongs to a rollout"
    change |= _seen(state, event)
    if event.phase is not state.phase or event.phase is Phase.SHIFTING or event.weight is not None:
        change |= _entered(state, event)
    if event.approval is not None:
        change |= {"approval": event.approval}
    if event.phase in TERMINAL:
        change |= {"finished": {**state.finished, state.proposal.rollout: event.phase}}
        change |= _outcome(state, state.proposal.version, event)
    return state.model_copy(update=change)


def _seen(state: RolloutState, event: RolloutEvent) -> dict[str, object]:
    """What an event's look changes."""
    assert state.proposal is not None, "an event belongs to a rollout"
    change: dict[str, object] = {"raised": state.raised + event.raised}
    if event.clock_went_back:  # what the new readings cover is counted anew, so nothing of before may stay
        started = {"evidence": state.evidence.fresh(), "tally": ""}
        return change | {**started, "looks": state.looks + 1, "watched_until": event.at}
    if event.look is None and not event.missed:
        return change
    change |= {
        "looks": state.looks + 1,
        "misses": state.misses + 1 if event.missed else 0,
        "unready": state.unready + 1 if event.unready else 0,
    }
    if event.look is None and event.unread:
        return change
    if event.look is None:
        until = max(state.watched_until, event.at)
        return change | {"evidence": state.evidence.skipped_to(until), "watched_until": until}
    if not event.missed:
        change |= {"covered_s": state.covered_s + adds_s(state, event.look)}
        change |= {"judged_until": max(state.judged_until, event.look.judged_until)}
    return change | {
        "evidence": event.look.evidence,
        "tally": event.look.tally,
        "watched_until": max(state.watched_until, event.look.window_end),
    }


def adds_s(state: RolloutState, look: LookResult) -> float:
    """Seconds that a look adds to what is covered: its window without what was watched before, within one look's
    longest. A clock that jumped ahead, or a controller that was away, is no time observed."""
    assert state.proposal is not None, "a look belongs to a rollout"
    window = look.window_end - max(look.window_start, state.watched_until)
    return max(0.0, min(window, state.proposal.policy.max_look_s))


def _entered(state: RolloutState, event: RolloutEvent) -> dict[str, object]:
    """What entering a phase changes."""
    assert state.proposal is not None, "an event belongs to a rollout"
    skipped = max(state.watched_until, event.at)
    anew: dict[str, object] = {
        "covered_s": 0.0,
        "judged_until": 0.0,
        "misses": 0,
        "unready": 0,
        "raised": 0,
        "watched_until": skipped,
    }
    resumed = state.phase is Phase.HELD  # only a person leads out of it, except to 0
    match event.phase:
        case Phase.SHIFTING if event.missed:
            return {}
        case Phase.SHIFTING:
            asked = {**anew, "offered": True, "left_weight": state.canary_weight}
            if resumed and state.held_weight == state.settled_weight:  # harm goes on being proven, shares are seen anew
                return {**asked, "evidence": state.evidence.resumed().skipped_to(skipped)}
            # Or the stage's own begins: at a weight that somebody lowered, users were in the other arm.
            seen = event.look.evidence if event.look else state.evidence
            return {**asked, "evidence": seen.fresh(), "tally": ""}
        case Phase.OBSERVING:
            evidence = state.evidence.resumed().skipped_to(skipped)
            return {**anew, "settled": event.stage, "since": event.at, "evidence": evidence}
        case Phase.GATED | Phase.APPROVED:
            return {"cleared": state.cleared or resumed, "misses": 0, "unready": 0}
        case Phase.HELD:
            return {"held_weight": state.settled_weight if event.weight is None else event.weight}
        case Phase.ROLLING_BACK:
            change: dict[str, object] = {"quarantine": event.quarantine, "misses": 0}
            if state.phase is Phase.PROMOTED:
                change |= {"champion": state.previous, "champion_since": event.at, "previous": None}
            return change
        case _:
            return {}


def _outcome(state: RolloutState, version: ModelVersion, event: RolloutEvent) -> dict[str, object]:
    if event.phase is Phase.PROMOTED:
        serving = {"champion": version, "champion_since": event.at, "previous": state.champion}
        return {**serving, "promotions": state.promotions + 1}
    if event.phase is Phase.ROLLED_BACK:
        return {"quarantined": {**state.quarantined, version.model.digest: version.version}}
    return {}
