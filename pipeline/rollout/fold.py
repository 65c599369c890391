"""What a rollout's log adds up to. Pure but for reading it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from pipeline.rollout.record import (
    TERMINAL,
    LookResult,
    ModelVersion,
    Phase,
    RolloutEvent,
    RolloutState,
    read_events,
)
from pipeline.storage import Store


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
    if event.behind:
        return change | {"behind": event.at, "looks": state.looks + 1, "misses": state.misses + 1}
    if event.look is None and not event.missed:
        return change
    change |= {
        "looks": state.looks + 1,
        "misses": state.misses + 1 if event.missed else 0,
        "unready": state.unready + 1 if event.unready else 0,
        "behind": None,
        "unread_since": None,
    }
    seen_from = watched_from(state, event.at)
    if event.look is None:
        until = max(seen_from, event.at)
        if event.unread:
            change |= {"unread_since": looked_from(state, event.at)}
        else:
            change |= {"evidence": state.evidence.skipped_to(until)}
        return change | _watched(state, until)
    if not event.missed:
        change |= {"covered_s": state.covered_s + adds_s(state, event.look)}
        change |= {"judged_until": max(state.judged_until, event.look.judged_until)}
    return change | {
        "evidence": event.look.evidence,
        "tally": event.look.tally,
        **_watched(state, max(seen_from, event.look.window_end)),
    }


def _watched(state: RolloutState, until: float) -> dict[str, object]:
    return {"watched_until": until, "furthest": max(state.furthest, until)}


def watched_from(state: RolloutState, now: float) -> float:
    """Where the next window starts. Where two readings in a row say that the clock once ran ahead, at the first."""
    if state.behind is not None and state.behind <= now < state.watched_until:
        return state.behind
    return state.watched_until


def looked_from(state: RolloutState, now: float) -> float:
    """Where the next look begins: what earlier ones could not read yet is read again, and no dwell."""
    seen_from = watched_from(state, now)
    return seen_from if state.unread_since is None else min(state.unread_since, seen_from)


def adds_s(state: RolloutState, look: LookResult) -> float:
    """Seconds that a look adds to what is covered: its window without what was watched before, within one look's
    longest. A clock that jumped, or a controller that was away, is no time observed; and of two clocks that are apart,
    the one ahead adds nothing each time that it follows the other."""
    assert state.proposal is not None, "a look belongs to a rollout"
    start, longest = max(look.window_start, watched_from(state, look.window_end)), state.proposal.policy.max_look_s
    window = look.window_end - start
    if start < state.furthest and window > longest and look.window_end >= state.furthest:
        return 0.0
    return max(0.0, min(window, longest))


def _entered(state: RolloutState, event: RolloutEvent) -> dict[str, object]:
    """What entering a phase changes."""
    assert state.proposal is not None, "an event belongs to a rollout"
    skipped = max(watched_from(state, event.at), event.at)
    anew: dict[str, object] = {
        "covered_s": 0.0,
        "judged_until": 0.0,
        "misses": 0,
        "unready": 0,
        "raised": 0,
        **_watched(state, skipped),
        "unread_since": None,
        "behind": None,
    }
    resumed = state.phase is Phase.HELD  # only a person leads out of it, except to 0
    match event.phase:
        case Phase.SHADOWING:
            return {**anew, "offered": True, "since": event.at}
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
