"""A person's decision about the rollout that runs: a held one is resumed, any is aborted.

Owns that a decision is about the rollout that its person looked at, that the event and the audit log name who decided
and why, and that an abort has moved the traffic before it returns. Refuses to check who somebody is.
"""

from __future__ import annotations

from typing import Literal

from pipeline.rollout.controller import RolloutPorts, Tick, reconcile, roll_back
from pipeline.rollout.record import Phase, RolloutEvent, RolloutState, RolloutStep, append, read_state, step_event
from pipeline.storage import Record, Store

Action = Literal["resume", "abort"]
MIN_DIGEST = 12
"""Characters of a digest that name a model."""


class RolloutDecision(Record):
    """What a person wants, why, and which rollout they mean."""

    action: Action
    reason: str
    by: str
    rollout: str = ""
    """Its id, or its candidate's digest (at least the first 12 characters); empty: whichever is active."""


class DecisionResult(Record):
    """The state after a decision, and why it has no effect; empty when it is on record."""

    state: RolloutState
    refused: str = ""
    errors: tuple[str, ...] = ()
    """What could not be projected onto the registry or the audit log: the next tick tries again."""


def decide(ports: RolloutPorts, decision: RolloutDecision, now: float) -> DecisionResult:
    """Put a decision on record and make the traffic follow it at once.

    An abort takes the canary to 0% and reads it back; the state is still ROLLING_BACK when the router does not obey.
    A rollback that was decided before is taken on. Raises ValueError without a reason or a name.
    """
    for field, value in (("reason", decision.reason), ("by", decision.by)):
        if not value.strip():
            raise ValueError(f"The decision has no {field}. Give one: it goes into the audit log.")
    store, model_name = ports.store, ports.model_name
    act = resume if decision.action == "resume" else abort
    while True:
        state = read_state(store, model_name)
        if refused := _refusal(state, decision):
            return DecisionResult(state=state, refused=refused)
        if act(store, model_name, decision.reason, now, decision.by, state.rollout):
            break
        if decision.action == "abort" and state.phase is Phase.ROLLING_BACK:
            break
    follow = reconcile if decision.action == "resume" else roll_back
    done: Tick = follow(ports, now)
    return DecisionResult(state=done.state, errors=done.errors)


def resume(store: Store, model_name: str, reason: str, now: float, by: str = "", rollout: str = "") -> bool:
    """Let a held rollout observe its stage again: time and misses start over, evidence stays. False unless held.

    `rollout`: only this one.
    """
    while (state := read_state(store, model_name)).phase is Phase.HELD and rollout in ("", state.rollout):
        if append(store, model_name, state, _resumed(state, reason, now, by)):
            return True
    return False


def abort(store: Store, model_name: str, reason: str, now: float, by: str = "", rollout: str = "") -> bool:
    """Decide to take an active rollout back to 0% without blaming the candidate; a tick moves the traffic.

    False when none is active, or its way back is decided already. `rollout`: only this one.
    """
    while may_be_aborted(state := read_state(store, model_name)) and rollout in ("", state.rollout):
        if append(store, model_name, state, step_event(state, now, RolloutStep(Phase.ROLLING_BACK, reason, by=by))):
            return True
    return False


def may_be_aborted(state: RolloutState) -> bool:
    return state.active and state.phase is not Phase.ROLLING_BACK


def _resumed(state: RolloutState, reason: str, now: float, by: str) -> RolloutEvent:
    return step_event(state, now, RolloutStep(Phase.SHIFTING, reason, stage=max(state.settled, 0), by=by))


def _refusal(state: RolloutState, decision: RolloutDecision) -> str:
    if not state.active:
        ended = f": the last one, {state.rollout}, is {state.phase}" if state.proposal else ""
        return f"no rollout is active{ended}"
    if state.proposal is not None and not _meant(state.rollout, state.proposal.version.model.digest, decision.rollout):
        return f"{decision.rollout} is not the active rollout, which is {state.rollout}"
    if decision.action == "resume" and state.phase is not Phase.HELD:
        return f"rollout {state.rollout} is {state.phase}, and only a held one can be resumed"
    return ""


def _meant(rollout: str, digest: str, wanted: str) -> bool:
    return wanted in ("", rollout) or (len(wanted) >= MIN_DIGEST and digest.startswith(wanted))
