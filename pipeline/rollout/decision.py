"""A person's decision about the rollout that runs, or about the promotion that it ended in. Event and audit log name
who decided and why, and traffic has moved before `decide` returns. Nothing checks who typed a name."""

from typing import Any

from pipeline.core.storage import Record, Store
from pipeline.rollout.controller import roll_back
from pipeline.rollout.fold import read_state
from pipeline.rollout.policy import approval_refusal
from pipeline.rollout.reconcile import reconcile, slot_of
from pipeline.rollout.record import Action, Phase, RolloutState, RolloutStep, append, step_event
from pipeline.rollout.router import RolloutPorts, Tick


class RolloutDecision(Record):
    """What a person wants, why, and which rollout they mean."""

    action: Action
    reason: str
    by: str
    rollout: str = ""
    """Its id; "": whichever is active. `approve` needs it."""


def decide(ports: RolloutPorts, decision: RolloutDecision, now: float) -> Tick:
    """Put a decision on record and make the traffic follow it at once. An abort or a rollback takes the canary to 0%
    and reads it back; the state is still ROLLING_BACK when the router does not obey. A rollback that was decided before
    is taken on. Raises ValueError without a reason or a name."""
    for field, value in (("reason", decision.reason), ("by", decision.by)):
        if not value.strip():
            raise ValueError(f"The decision has no {field}. Give one: it goes into the audit log.")
    out = decision.action in ("abort", "rollback")
    while True:
        state = read_state(ports.store, ports.model_name)
        refused = _refusal(state, decision, now)
        if not refused and state.phase is Phase.PROMOTED:
            refused = _no_way_back(state, ports, now)
        if refused:
            return Tick(state=state, refused=refused)
        if state.phase is Phase.ROLLING_BACK:
            break
        event = step_event(state, now, _step(state, decision))
        if decision.action == "reopen":
            policy = ports.policy_now(state.opened.version.iteration) if ports.policy_now else state.opened.policy
            again = state.opened.model_copy(update={"policy": policy, "proposed_by": decision.by})
            event = event.model_copy(update={"proposal": again})
        if append(ports.store, ports.model_name, state, event):
            break
    return roll_back(ports, now) if out else reconcile(ports, now)


def abort(store: Store, model_name: str, reason: str, now: float, by: str = "", rollout: str = "") -> bool:
    """Decide to take an active rollout back to 0% without blaming the candidate; a tick moves the traffic. False when
    none is active, or its way back is decided already. `rollout`: only this one."""
    decision = RolloutDecision(action="abort", reason=reason, by=by)
    while may_be_aborted(state := read_state(store, model_name)) and rollout in ("", state.rollout):
        if append(store, model_name, state, step_event(state, now, _step(state, decision))):
            return True
    return False


def decisions(state: RolloutState, now: float) -> tuple[Action, ...]:
    if state.phase is Phase.PROMOTED:
        return ("rollback",) if now < state.warm_until else ()
    if state.phase is Phase.ABORTED:
        return ("reopen",)
    if not may_be_aborted(state):
        return ()
    first: dict[Phase, tuple[Action, ...]] = {Phase.HELD: ("resume",), Phase.PROPOSED: ()}
    if state.waits_for_approval:
        first[Phase.GATED] = ("approve", "pause")
    return (*first.get(state.phase, ("pause",)), "abort", "rollback")


def may_be_aborted(state: RolloutState) -> bool:
    return state.active and state.phase is not Phase.ROLLING_BACK


def _step(state: RolloutState, decision: RolloutDecision) -> RolloutStep:
    signed: dict[str, Any] = {"by": decision.by, "reason": decision.reason}
    signed["action"] = decision.action if decision.by else None
    match decision.action:
        case "approve":
            return RolloutStep(phase=Phase.APPROVED, **signed)
        case "reopen":
            return RolloutStep(phase=Phase.PROPOSED, stage=0, **signed)
        case "pause":
            return RolloutStep(phase=Phase.HELD, **signed)
        case "abort" | "rollback":
            return RolloutStep(phase=Phase.ROLLING_BACK, quarantine=decision.action == "rollback", **signed)
        case "resume" if state.confirmed_stage >= 0:
            return RolloutStep(phase=Phase.SHIFTING, stage=state.confirmed_stage, **signed)
        case "resume":  # it never had traffic: all that comes before its first weight is looked at again
            return RolloutStep(phase=Phase.APPROVED if state.approved_by else Phase.GATED, **signed)


def _refusal(state: RolloutState, decision: RolloutDecision, now: float) -> str:
    if (decision.action, state.phase) in (("rollback", Phase.PROMOTED), ("reopen", Phase.ABORTED)):
        return _other(state, decision)
    if not state.active:
        ended = f": the last one, {state.rollout}, is {state.phase}" if state.proposal else ""
        return f"no rollout is active{ended}"
    if other := _other(state, decision):
        return other
    if decision.action in ("abort", "rollback"):
        return ""
    if decision.action not in decisions(state, now):
        return f"rollout {state.rollout} is {state.phase}, and nothing is there to {decision.action}"
    if decision.action != "approve":
        return ""
    if not decision.rollout:
        return f"the approval names no rollout, and the one that waits is {state.rollout}"
    return approval_refusal(decision.by, state.opened.policy.approvers, state.opened.proposed_by)


def _no_way_back(state: RolloutState, ports: RolloutPorts, now: float) -> str:
    if now >= state.warm_until:
        return f"the champion before {state.rollout} is not kept loaded any more: propose it again"
    reason = slot_of(ports.split, state.opened.champion).reason
    return f"there is no way back: {reason}" if reason else ""


def _other(state: RolloutState, decision: RolloutDecision) -> str:
    if decision.rollout in ("", state.rollout):
        return ""
    return f"{decision.rollout} is not the active rollout, which is {state.rollout}"
