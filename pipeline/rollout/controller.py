"""A candidate's way into production: who may enter, and one step at a time with traffic following the record.

The rule. Only a candidate whose PASS bundle is bound to its digest is proposed, one at a time, never one that was
rolled back or is blocked (blocks.py); a block that comes later aborts the rollout. Its files and the champion's are
hashed (GATED); then it gets each weight in turn (SHIFTING until the router reads it back, OBSERVING from then on).
Every look tests for harm, anytime-valid (policy.py): proven harm takes the canary to 0 at once, is final, and
quarantines the digest. Time counts towards a stage's dwell only while fresh, complete metrics cover it; three looks in
a row without them hold the rollout. When dwell and requests suffice, one test of point estimates per stage advances
the rollout or holds it. A held rollout keeps its last settled weight and its harm test and never leaves that weight by
itself but for 0; a person resumes or aborts it (decision.py). No rule reads a clock: time is an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from pipeline import audit
from pipeline.rollout.blocks import blocked
from pipeline.rollout.policy import LiveMetrics, RolloutPolicy, harm, shortfall, skew, unusable
from pipeline.rollout.record import (
    TERMINAL,
    Phase,
    Proposal,
    RolloutState,
    RolloutStep,
    append,
    covered_s,
    read_events,
    read_state,
    step_event,
)
from pipeline.rollout.router import Split, TrafficSplit
from pipeline.storage import ModelRef, Record, Store, digest_dir

MAX_MISSES = 3
"""Looks in a row without usable evidence, after which a person is asked."""


class LiveMetricsPort(Protocol):
    """Where production's metrics come from. Whatever it raises counts as metrics that are missing."""

    def look(self, split: Split, look: int, since: float, now: float) -> LiveMetrics | None:
        """Both arms in a window that starts at `since` or later and ends at `now` or before; None when unknown.

        `look` numbers the looks of this rollout.
        """
        ...


Projection = Callable[[RolloutState], None]
"""Makes a registry agree with the record; raises when the registry cannot be reached."""


class Unwatched:
    """Live metrics of somebody who does not look."""

    def look(self, split: Split, look: int, since: float, now: float) -> None:
        return None


class Tick(Record):
    """The state after one tick, and what could not be projected onto the registry or the audit log this time."""

    state: RolloutState
    errors: tuple[str, ...] = ()


def is_intact(model: ModelRef) -> bool:
    folder = Path(model.uri)
    return folder.is_dir() and digest_dir(folder) == model.digest


@dataclass(frozen=True)
class RolloutPorts:
    """The rollout of one model and the world that it reads and moves."""

    store: Store
    model_name: str
    split: TrafficSplit
    project: Projection
    metrics: LiveMetricsPort = Unwatched()  # noqa: RUF009 (it has no state)
    intact: Callable[[ModelRef], bool] = is_intact
    """Whether a model's files still have their digest."""


def tick(ports: RolloutPorts, now: float) -> Tick:
    """Read the record, observe the world, take at most one transition, make traffic and then the registry follow.

    Level-triggered: it may crash anywhere, be repeated, and run beside another.
    """
    state = read_state(ports.store, ports.model_name)
    if state.proposal is None:
        return Tick(state=state)
    reason = blocked(ports.store, state.proposal.version)
    if reason and state.active and state.phase is not Phase.ROLLING_BACK:
        step = RolloutStep(Phase.ROLLING_BACK, reason)
    else:
        step = _step(state, state.proposal, ports, now)
    if step is not None:
        append(ports.store, ports.model_name, state, step_event(state, now, step))
    return reconcile(ports, now)


def roll_back(ports: RolloutPorts, now: float) -> Tick:
    """Take a rollback that was decided to its end now: move the traffic, then read it back. Nothing is measured.

    The state is still ROLLING_BACK when the router does not obey; later ticks go on trying.
    """
    unwatched = replace(ports, metrics=Unwatched())
    moved = tick(unwatched, now)
    if moved.state.phase is not Phase.ROLLING_BACK:
        return moved
    return tick(unwatched, now)


def wanted_split(state: RolloutState) -> Split:
    """The traffic that the record asks for. Pure; needs a rollout."""
    proposal = state.proposal
    assert proposal is not None, "no rollout, no split"
    promoted, weight = state.phase is Phase.PROMOTED, state.canary_weight
    return Split(
        rollout=proposal.rollout,
        epoch=state.turn,
        champion=proposal.version.model if promoted else proposal.champion,
        champion_weight=100 - weight,
        canary=proposal.version.model if state.active else None,
        canary_weight=weight,
    )


def _step(state: RolloutState, proposal: Proposal, ports: RolloutPorts, now: float) -> RolloutStep | None:
    if state.phase is Phase.PROPOSED:
        lost = [m.uri for m in (proposal.champion, proposal.version.model) if not ports.intact(m)]
        if lost:
            return RolloutStep(Phase.ROLLING_BACK, f"files are gone or changed: {', '.join(lost)}")
        return RolloutStep(Phase.GATED, f"bundle {proposal.bundle_digest[:12]} passes")
    if state.phase is Phase.GATED:
        return RolloutStep(Phase.SHIFTING, f"to {proposal.policy.weights[0]}%")
    if not state.active:
        return None
    in_force = _agrees(ports.split.read(), wanted_split(state))
    if state.phase is Phase.SHIFTING:
        if in_force:
            return RolloutStep(Phase.OBSERVING, f"the router reads {state.canary_weight}%")
        return _missed(state, f"the router does not read {state.canary_weight}% yet")
    if state.phase is Phase.ROLLING_BACK:
        over = Phase.ROLLED_BACK if state.quarantine else Phase.ABORTED
        return RolloutStep(over, state.reason) if in_force else None
    if not in_force:  # somebody moved the traffic: what the arms did meanwhile is no evidence
        return _missed(state, f"the router does not read {state.canary_weight}%")
    if state.canary_weight == 0 or now <= state.watched_until:
        return None  # no canary to watch, or nothing new since it was watched
    return _judge(state, proposal.policy, ports.metrics, now)


def _agrees(read: Split | None, wanted: Split) -> bool:
    """Same models, same weights; who asked for them does not matter here."""
    return read is not None and read.model_copy(update={"epoch": wanted.epoch}) == wanted


def _judge(state: RolloutState, policy: RolloutPolicy, metrics: LiveMetricsPort, now: float) -> RolloutStep | None:
    try:
        look = metrics.look(wanted_split(state), state.looks + 1, state.watched_until, now)
        blind = unusable(look, state.watched_until, now, policy)
    except Exception as error:  # boundary: a metrics source that fails is metrics that are missing
        look, blind = None, f"no metrics: {error}"
    if look is None or blind:
        return _missed(state, blind)
    evidence = state.evidence.plus(look, policy)
    if reason := harm(evidence, policy):
        return RolloutStep(Phase.ROLLING_BACK, reason, look=look, quarantine=True)
    if state.phase is Phase.HELD:
        return RolloutStep(Phase.HELD, "no harm is proven", look=look)
    if reason := skew(evidence, state.canary_weight):
        return RolloutStep(Phase.HELD, reason, look=look)
    dwell, wanted = state.dwell_s + covered_s(state, look, now), policy.dwell_s[state.stage]
    graded, enough = evidence.canary.graded, policy.min_canary_requests
    if dwell < wanted or graded < enough:
        seen = f"{dwell:.0f} of {wanted:.0f} s and {graded:.0f} of {enough} requests at {state.canary_weight}%"
        return RolloutStep(Phase.OBSERVING, seen, look=look)
    if reason := shortfall(evidence, policy):
        return RolloutStep(Phase.HELD, reason, look=look)
    if state.stage + 1 == len(policy.weights):
        return RolloutStep(Phase.PROMOTED, f"no harm at {state.canary_weight}%", look=look)
    to = f"no harm at {state.canary_weight}%, to {policy.weights[state.stage + 1]}%"
    return RolloutStep(Phase.SHIFTING, to, look=look, stage=state.stage + 1)


def _missed(state: RolloutState, reason: str) -> RolloutStep:
    phase = Phase.HELD if state.misses + 1 >= MAX_MISSES else state.phase
    return RolloutStep(phase, reason, missed=True)


def reconcile(ports: RolloutPorts, now: float) -> Tick:
    """Traffic first, then registry and audit log, all from the record as it is by now, whoever wrote its last event."""
    state = read_state(ports.store, ports.model_name)
    wanted = wanted_split(state)
    if ports.split.read() != wanted:
        ports.split.apply(wanted)
    errors: list[str] = []
    try:
        ports.project(state)
    except Exception as error:  # boundary: a registry that is down must not keep traffic where it is
        errors.append(f"registry: {error}")
    try:
        _audit(ports.store, ports.model_name, state, now)
    except (OSError, ValueError) as error:  # likewise: traffic has moved, the next tick tries again
        errors.append(f"audit: {error}")
    return Tick(state=state, errors=tuple(errors))


def _audit(store: Store, model_name: str, state: RolloutState, now: float) -> None:
    """Each promotion and each person's decision once, also one whose own process died before it got here."""
    events = read_events(store, model_name)
    decided = any(e.by for e in events if e.rollout == state.rollout)
    if state.phase not in TERMINAL and not decided:
        return
    written, at = {(e.kind, e.subject) for e in audit.entries(store)}, datetime.fromtimestamp(now, UTC)
    versions = {e.rollout: e.proposal.version for e in events if e.proposal is not None}
    for event in events:
        kind = "promotion" if event.phase is Phase.PROMOTED else "decision"
        subject = event.rollout if kind == "promotion" else f"{event.rollout}/{event.epoch}"
        if (kind == "decision" and not event.by) or (kind, subject) in written:
            continue
        version = versions[event.rollout]
        detail = {"model": model_name, "version": version.version, "digest": version.model.digest}
        if kind == "decision":
            action = "resume" if event.phase is Phase.SHIFTING else "abort"
            detail |= {"action": action, "by": event.by, "reason": event.reason}
        audit.record(store, kind, subject, {**detail, "epoch": event.epoch}, at, once=True)
