"""Traffic, registry and audit log follow the record as it is now, whoever wrote it. No weight rises onto a slot
that does not serve that model or has too few servers, and one that a person lowered is not raised again."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime

from pipeline.core import audit
from pipeline.core.storage import ModelRef, Store
from pipeline.rollout.fold import drop_tallies, read_log
from pipeline.rollout.record import Phase, Proposal, RolloutEvent, RolloutState
from pipeline.rollout.router import Readiness, RolloutPorts, Split, Tick, TrafficSplit, Unsettled, asked_for


def reconcile(ports: RolloutPorts, now: float) -> Tick:
    """Make the world follow the record. What cannot now is named in the result, and tried again by the next tick."""
    log = read_log(ports.store, ports.model_name, keep=True)
    state = log.state
    if state.proposal is None:
        return Tick(state=state)
    errors: list[str] = []
    try:
        _move_traffic(ports.split, state, now)
    except Exception as error:  # boundary: any router; it is asked again by the next tick
        errors.append(f"router: {error}")
    try:
        ports.project(state)
    except Exception as error:  # boundary: a registry that is down must not keep traffic where it is
        errors.append(f"registry: {error}")
    try:
        put_in_audit_log(ports.store, ports.model_name, log.events, now)
        drop_tallies(ports.store, ports.model_name, state)
    except (OSError, ValueError) as error:  # likewise: traffic has moved, the next tick tries again
        errors.append(f"audit: {error}")
    return Tick(state=state, errors=tuple(errors))


def wanted_split(state: RolloutState, now: float) -> Split:
    """The traffic that the record asks for at a time. Pure; needs a rollout."""
    proposal = state.opened
    promoted, weight = state.phase is Phase.PROMOTED, state.canary_weight
    waits_for_slot = state.phase in (Phase.GATED, Phase.APPROVED) and not state.waits_for_approval
    loaded = state.active and (state.offered or waits_for_slot)  # until it is out of requests for certain
    return Split(
        rollout=proposal.rollout,
        epoch=state.requested_epoch,
        champion=proposal.version.model if promoted else proposal.champion,
        champion_weight=100 - weight,
        canary=proposal.version.model if loaded else None,
        canary_weight=weight,
        warm=proposal.champion if now < state.warm_until else None,
        expires_at=now + proposal.policy.lease_s if weight else None,
    )


def slot_of(split: TrafficSplit, model: ModelRef) -> Readiness:
    """What a model's slot serves, and whether it may have requests of it."""
    try:
        slot = split.ready(model)
    except Exception as error:  # boundary: who cannot be asked may still serve, and is not known to
        return Readiness(reason=f"the slot cannot be asked: {error}")
    short, why = model.digest[:12], f": {slot.reason}" if slot.reason else ""
    if slot.replicas <= 0 or not slot.served_digest:
        return Readiness(reason=f"no server answers for {short}{why}", down=True)
    if slot.served_digest != model.digest:
        return Readiness(
            reason=f"the slot of {short} serves {slot.served_digest[:12]}{why}. Load {short} there", wrong=True
        )
    return slot.model_copy(update={"reason": f"the slot of {short} is not ready{why}" if why else ""})


def too_few_servers(split: TrafficSplit, proposal: Proposal, weight: int) -> str:
    """Why the candidate's slot has too few servers for a weight, in percent, or "": it takes as many as the champion's
    has, in proportion, and the last weight all of them. Asks both; one that cannot be asked counts for nothing."""
    policy = proposal.policy
    canary, champion = (slot_of(split, model).replicas for model in (proposal.version.model, proposal.champion))
    percent = 100 if weight >= policy.canary_weights[-1] else weight
    needed = max(1, math.ceil(percent * champion / 100))
    if canary >= needed:
        return ""
    return (
        f"the slot of {proposal.version.model.digest[:12]} has {canary} of {needed} servers that {percent}% takes: the "
        f"champion has {champion}. Scale the canary's slot up"
    )


def _move_traffic(router: TrafficSplit, state: RolloutState, now: float) -> None:
    wanted = wanted_split(state, now)
    try:
        read = router.read()
    except Exception:  # boundary: any router
        undone = state.phase is Phase.HELD and state.stage > state.confirmed_stage
        if undone or not wanted.canary_weight:  # it may still obey, where that is no more than is in force
            router.apply(wanted)
        raise
    weight_now = read.canary_weight if isinstance(read, Split) and read.rollout == wanted.rollout else 0
    if lowered_by_hand(read, state, wanted):
        return
    reason = ""
    if wanted.canary is not None and wanted.canary_weight > weight_now:
        reason = slot_of(router, wanted.canary).reason
        reason = reason or too_few_servers(router, state.opened, wanted.canary_weight)
    if reason:  # asked for without more requests, so that its slot loads it; what it waits for is still to be asked for
        waiting = {"epoch": state.requested_epoch - 1, "canary_weight": weight_now, "champion_weight": 100 - weight_now}
        wanted = wanted.model_copy(update=waiting)
    if read != wanted:
        router.apply(wanted)
    if reason:
        raise ValueError(f"The weight stays at {weight_now}%, because {reason}.")


def lowered_by_hand(read: Split | Unsettled | None, state: RolloutState, wanted: Split) -> bool:
    """Whether a person took requests from the canary: the router was asked for less than this rollout ever did."""
    asked = asked_for(read)
    if asked is None or asked.rollout != wanted.rollout or asked.canary_weight >= wanted.canary_weight:
        return False
    if state.phase is Phase.SHIFTING:  # the rollout's own last split may be the one before
        return asked.epoch >= state.requested_epoch or asked.canary_weight < state.weight_in_force
    return True


def put_in_audit_log(store: Store, model_name: str, events: Sequence[RolloutEvent], now: float) -> None:
    """Each decision, of rules or of people, once; also one whose own process died before it got here."""
    phases = [Phase.IDLE, *(event.phase for event in events)]
    named = [(event, *name) for before, event in zip(phases, events, strict=False) if (name := audited(before, event))]
    written = audit.written(store) if named else frozenset[tuple[str, str]]()
    proposals = {e.rollout: e.proposal for e in events if e.proposal is not None}
    for event, kind, action in named:
        subject = event.rollout if kind == "promotion" else f"{event.rollout}/{event.epoch}"
        if (kind, subject) in written:
            continue
        version = proposals[event.rollout].version
        detail: dict[str, object] = {"model": model_name, "version": version.version, "digest": version.model.digest}
        if kind != "promotion":
            detail |= {"action": action, "by": event.by, "reason": event.reason}
        detail |= {"weight": event.weight} if event.weight is not None else {}
        detail |= {"bundle": proposals[event.rollout].bundle_digest} if kind == "approval" else {}
        at = datetime.fromtimestamp(now, UTC)
        audit.record(store, kind, subject, {**detail, "epoch": event.epoch}, at, once=True)


def audited(before: Phase, event: RolloutEvent) -> tuple[audit.Kind, str] | None:
    """Kind and action under which an event is audited; None for a look that decided nothing."""
    if event.action is not None:
        return ("approval" if event.action == "approve" else "decision"), event.action
    if event.weight is not None:
        return "weight", "hold"
    if event.phase is before:
        return None
    if event.phase is Phase.SHIFTING:
        return None if before is Phase.HELD else ("weight", "raise")
    names: dict[Phase, tuple[audit.Kind, str]] = {
        Phase.PROMOTED: ("promotion", ""),
        Phase.ROLLING_BACK: ("rollback", "quarantine" if event.quarantine else "abort"),
        Phase.HELD: ("hold", "hold"),
        Phase.SUPERSEDED: ("decision", "supersede"),
    }
    return names.get(event.phase)
