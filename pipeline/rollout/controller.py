"""A candidate's way into production, one step a tick: harm comes first, then the slot, then the router. Three looks
without usable evidence hold; a weight that a person lowered is obeyed and held, one that was raised is put back."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from pipeline.rollout.evidence import LiveMetrics, LookRequest, StageTally, summed
from pipeline.rollout.fold import adds_s, read_state, read_tally, write_tally
from pipeline.rollout.reconcile import (
    lowered_by_hand,
    reconcile,
    slot_of,
    too_few_servers,
    wanted_split,
)
from pipeline.rollout.record import LookResult, Phase, Proposal, RolloutState, RolloutStep, append, blocked, step_event
from pipeline.rollout.router import NullMetrics, Readiness, RolloutPorts, Split, Tick, asked_for
from pipeline.rollout.rules import (
    comparability_problem,
    harm,
    judged_until,
    stage_timeout,
    unproven,
    unusable,
)

MAX_MISSES = 3
"""Looks in a row without usable evidence, after which a person is asked."""
MAX_LOADING = 60
"""Ticks for which a slot may load the candidate before its first weight, after which a person is asked."""


def tick(ports: RolloutPorts, now: float) -> Tick:
    """Read the record, observe the world, take at most one transition, make traffic and then the registry follow.
    Level-triggered: it may crash anywhere, be repeated, and run twice at a time."""
    state = read_state(ports.store, ports.model_name)
    if state.active and (step := _step(state, state.opened, ports, now)) is not None:
        append(ports.store, ports.model_name, state, step_event(state, now, step))
    return reconcile(ports, now)


def roll_back(ports: RolloutPorts, now: float) -> Tick:
    """Take a rollback that was decided to its end now: move the traffic, read it back, then the registry. Nothing is
    measured. The state is still ROLLING_BACK when the router does not obey; later ticks go on trying."""
    reconcile(replace(ports, project=lambda state: None), now)
    return tick(replace(ports, metrics=NullMetrics()), now)


def _step(state: RolloutState, proposal: Proposal, ports: RolloutPorts, now: float) -> RolloutStep | None:
    if state.phase is Phase.ROLLING_BACK:
        return _rolled_back(state, ports, now)
    if reason := blocked(ports.store, proposal.version):
        return RolloutStep(phase=Phase.ROLLING_BACK, reason=reason)
    match state.phase:
        case Phase.PROPOSED:
            if lost := _lost(proposal, ports):
                return RolloutStep(phase=Phase.ROLLING_BACK, reason=lost)
            return RolloutStep(phase=Phase.GATED, reason=f"bundle {proposal.bundle_digest[:12]} passes")
        case Phase.GATED if state.waits_for_approval:
            return None
        case Phase.GATED | Phase.APPROVED:
            return _before_traffic(state, proposal, ports)
        case Phase.SHIFTING:
            return _shifting(state, proposal, ports, now)
        case Phase.OBSERVING:
            return _judge(state, proposal, ports, now)
        case Phase.HELD:
            return _held(state, proposal, ports, now)
        case _:
            return None


def _before_traffic(state: RolloutState, proposal: Proposal, ports: RolloutPorts) -> RolloutStep:
    """A slot that serves the candidate."""
    slot = slot_of(ports.split, proposal.version.model)
    if slot.wrong:
        return RolloutStep(phase=Phase.HELD, reason=slot.reason)
    first = proposal.policy.canary_weights[0]
    if reason := slot.reason or too_few_servers(ports.split, proposal, first):
        return _missed(state, reason, most=MAX_LOADING)
    if lost := _lost(proposal, ports):  # a person, or the slot, may have taken days
        return RolloutStep(phase=Phase.ROLLING_BACK, reason=lost)
    return RolloutStep(phase=Phase.SHIFTING, reason=f"to {first}%", stage=0)


def _lost(proposal: Proposal, ports: RolloutPorts) -> str:
    lost = [model.uri for model in (proposal.champion, proposal.version.model) if not ports.intact(model)]
    return f"files are gone or changed: {', '.join(lost)}" if lost else ""


def _rolled_back(state: RolloutState, ports: RolloutPorts, now: float) -> RolloutStep | None:
    if not (reason := _router(state, ports, now).reason):
        return RolloutStep(phase=Phase.ROLLED_BACK if state.quarantine else Phase.ABORTED, reason=state.reason)
    if state.watch.misses >= MAX_MISSES:  # told; it is tried on, and the log does not grow by that
        return None
    return RolloutStep(phase=Phase.ROLLING_BACK, reason=reason, missed=True)


def _shifting(state: RolloutState, proposal: Proposal, ports: RolloutPorts, now: float) -> RolloutStep:
    router = _router(state, ports, now)
    if not router.reason:
        return RolloutStep(phase=Phase.OBSERVING, reason=f"the router reads {state.canary_weight}%")
    look = _look(state, proposal, ports, now)  # it may be in force all the same
    if step := look.decided or _lowered(router, look):
        return step
    reason = look.slot.reason or too_few_servers(ports.split, proposal, state.canary_weight) or router.reason
    return _missed(state, reason, look=None if router.differs else look.result)


def _judge(state: RolloutState, proposal: Proposal, ports: RolloutPorts, now: float) -> RolloutStep | None:
    """A stage's tick: harm, slot, router, then whether the evidence suffices."""
    look = _look(state, proposal, ports, now)
    router = _router(state, ports, now)
    if step := look.decided or _wrong_slot(look) or _lowered(router, look):
        return step
    if reason := router.reason or look.blind:  # what the arms did at another weight is no evidence of this one
        unread = not router.differs and state.watch.misses + 1 < MAX_MISSES
        return _missed(state, reason, look=None if router.differs else look.result).model_copy(
            update={"unready": look.slot.down, "unread": unread}
        )
    if look.result is None:  # nothing new since it was looked at
        return None
    return _observed(state, proposal, ports, look)


def _held(state: RolloutState, proposal: Proposal, ports: RolloutPorts, now: float) -> RolloutStep | None:
    """The looks and the harm test of a held rollout; only a person or harm ends it."""
    router = _router(state, ports, now)
    if state.canary_weight == 0 and not router.raised:
        return None  # no canary to watch
    look = _look(state, proposal, ports, now)
    if step := look.decided or _wrong_slot(look) or _lowered(router, look):
        return step
    missed = router.reason or look.blind
    if look.result is None and not missed:
        return None
    return RolloutStep(
        phase=Phase.HELD,
        reason=missed or "no harm is proven",
        look=None if router.differs else look.result,  # at another weight, as in `_judge`
        missed=bool(missed),
        unready=look.slot.down,
    )


def _observed(state: RolloutState, proposal: Proposal, ports: RolloutPorts, look: _Look) -> RolloutStep:
    assert look.result is not None, "it was usable"
    policy, weight, evidence = proposal.policy, state.canary_weight, look.result.evidence
    if reason := comparability_problem(evidence, weight, policy):
        return RolloutStep(phase=Phase.HELD, reason=reason, look=look.result)
    covered = state.watch.covered_s + adds_s(state, look.result)
    dwell = min(covered, max(state.watch.judged_until, look.result.judged_until) - state.watch.since)
    last, wanted = state.stage + 1 == len(policy.weights), policy.dwell_s[state.stage]
    above = weight if last else policy.canary_weights[state.stage + 1]
    seen = f"{max(0.0, dwell):.0f} of {wanted:.0f} s at {weight}%" if dwell < wanted else ""
    lacks = "; ".join(filter(None, (seen, unproven(evidence, policy, weight), look.note)))
    if lacks := lacks or look.slot.reason or too_few_servers(ports.split, proposal, above):
        if reason := stage_timeout(lacks, evidence, policy, covered, wanted):
            return RolloutStep(phase=Phase.HELD, reason=reason, look=look.result)
        return RolloutStep(phase=Phase.OBSERVING, reason=lacks, look=look.result, unready=look.slot.down)
    if last:
        return RolloutStep(phase=Phase.PROMOTED, reason=f"no harm at {weight}%", look=look.result)
    reason = f"no harm at {weight}%, to {above}%"
    return RolloutStep(phase=Phase.SHIFTING, reason=reason, look=look.result, stage=state.stage + 1)


class _Look(NamedTuple):
    result: LookResult | None = None
    """None: nothing new, or nothing usable."""
    blind: str = ""
    decided: RolloutStep | None = None
    """Proven harm, or a clock that went back: the tick's step, whatever else there is."""
    slot: Readiness = Readiness()
    note: str = ""


def _look(state: RolloutState, proposal: Proposal, ports: RolloutPorts, now: float) -> _Look:
    policy, watched = proposal.policy, state.watch.watched_until
    if watched - now > policy.max_look_s:  # this reading is wrong, or the one before was: nothing here can tell
        reason = f"the clock went back by {watched - now:.0f} s. Set it right, then resume: the stage starts over"
        return _Look(decided=RolloutStep(phase=Phase.HELD, reason=reason, missed=True, clock_went_back=True))
    if now <= watched:
        return _Look()
    evidence = state.watch.evidence
    graded_since = None if evidence.graded_until is None else min(watched, evidence.graded_until)
    request = LookRequest(since=watched, now=now, slow_over_s=evidence.slow_over_s, graded_since=graded_since)
    metrics: LiveMetrics | None = None
    try:
        metrics = ports.metrics.look(wanted_split(state, now), request)
        blind = unusable(metrics, watched, now)
    except Exception as error:  # boundary: a metrics source that fails is metrics that are missing
        blind = f"no metrics: {error}"
    slot = slot_of(ports.split, proposal.version.model)
    result, note, step = None, "", None
    if not blind:
        assert metrics is not None, "None is unusable"
        result, note = _counted(state, proposal, ports, metrics)
        evidence = result.evidence
    if proof := harm(evidence, policy, state.watch.unready + 1 if slot.down else 0):
        blamed = proof.quarantine and not (proof.kind == "errors" and slot.down)  # its server died within the look
        step = RolloutStep(phase=Phase.ROLLING_BACK, reason=proof.reason, look=result, quarantine=blamed)
    return _Look(result, blind, step, slot, note)


def _counted(
    state: RolloutState, proposal: Proposal, ports: RolloutPorts, metrics: LiveMetrics
) -> tuple[LookResult, str]:
    """The stage's evidence with one more look, whose tally is written before any event names it; and a note."""
    before, note = state.watch.evidence, ""
    tally = read_tally(ports.store, ports.model_name, state.watch.tally) if state.watch.tally else StageTally()
    if tally is None:
        note, before, tally = "the rollout's tally is gone: its evidence starts over", before.fresh(), StageTally()
    elif not before.champion.requests + before.canary.requests:  # it is that of the stage before
        tally = tally.closed()
    own = tally.model_copy(update={"graded_until": before.graded_until})  # later than the tally's after a skipped look
    tally = own.plus(metrics, before.slow_over_s)
    result = LookResult(
        window_start=metrics.window_start,
        window_end=metrics.window_end,
        judged_until=judged_until(metrics, proposal.policy),
        evidence=summed(tally, before, proposal.policy),
        tally=write_tally(ports.store, ports.model_name, state.epoch + 1, tally),
    )
    return result, note


class _Router(NamedTuple):
    reason: str = ""
    """Why that is not in force; "" when it is."""
    differs: bool = False
    lowered_to: int | None = None
    raised: bool = False


def _router(state: RolloutState, ports: RolloutPorts, now: float) -> _Router:
    wanted = wanted_split(state, now)
    try:
        read = ports.split.read()
    except Exception as error:  # boundary: any router; who cannot be read has not confirmed anything
        return _Router(f"the router cannot be read: {error}")
    asked = asked_for(read)
    if asked is not None and lowered_by_hand(read, state, wanted):
        reason = f"the router was asked for {asked.canary_weight}%, not {wanted.canary_weight}%"
        return _Router(f"{reason}: somebody took requests from the canary", lowered_to=asked.canary_weight)
    if not isinstance(read, Split):
        return _Router(f"the router is not settled: {read.reason}" if read else "the router has no split", True)
    if read.rollout != wanted.rollout:
        return _Router(f"the router has the split of rollout {read.rollout}", True)
    reason = f"the router reads {read.canary_weight}%, not {wanted.canary_weight}%"
    if read.expires_at is not None and read.expires_at <= now:
        return _Router("the router's lease ran out: the champion served alone", True)
    if read.routes_like(wanted):
        return _Router()
    if read.canary_weight == wanted.canary_weight:
        return _Router("the router splits requests between other models", differs=True)
    if state.phase is not Phase.SHIFTING:  # less would be a person's wish
        return _Router(f"{reason}: somebody gave the canary more", differs=True, raised=True)
    return _Router(reason, differs=True)


def _wrong_slot(look: _Look) -> RolloutStep | None:
    if not look.slot.wrong:
        return None
    return RolloutStep(phase=Phase.HELD, reason=look.slot.reason, look=look.result, weight=0)


def _lowered(router: _Router, look: _Look) -> RolloutStep | None:
    if router.lowered_to is None:
        return None
    return RolloutStep(phase=Phase.HELD, reason=router.reason, look=look.result, weight=router.lowered_to)


def _missed(state: RolloutState, reason: str, *, look: LookResult | None = None, most: int = MAX_MISSES) -> RolloutStep:
    phase = Phase.HELD if state.watch.misses + 1 >= most else state.phase
    return RolloutStep(phase=phase, reason=reason, look=look, missed=True)


LOADS_EVERY_S = 1.0
"""How often a slot that loads the candidate is asked for, unless looks are more frequent."""


def drive(
    ports: RolloutPorts,
    log: Callable[[str], None],
    drive_for_s: float,
    look_every_s: float = 60.0,
    now: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> RolloutState:
    """Tick until the rollout is over, or only waits while `drive_for_s` have passed; with 0 a dwell that was running
    gets one look, and one that begins is left to the next run. Logs a line for each transition, and one for each error
    that the tick before had not."""
    started, name = now(), ports.model_name
    before, errors = read_state(ports.store, name), tuple[str, ...]()
    while True:
        done = tick(ports, now())
        state = done.state
        for error in done.errors:
            if error not in errors:
                log(f"rollout {name}: {error}")
        errors = done.errors
        if moved := (state.phase, state.stage, state.rollout) != (before.phase, before.stage, before.rollout):
            log(f"rollout {name} {state.rollout}: {_where(before)} -> {_where(state)}: {state.reason}")
        before = state
        if not state.active or state.waits_for_person:
            return state
        begun = state.phase in (Phase.OBSERVING, Phase.HELD)  # nothing to show yet
        if moved and not begun:
            continue
        pause = pause_s(state, look_every_s, moved)
        if pause == 0:
            continue
        if now() + pause - started > drive_for_s:
            return state
        sleep(pause)


def _where(state: RolloutState) -> str:
    return f"{state.phase} {state.canary_weight}%" if state.active else str(state.phase)


def pause_s(state: RolloutState, look_every_s: float, begun: bool) -> float:
    """Seconds until the dwell is over, if that is soon; else until the next look is due."""
    if state.phase in (Phase.GATED, Phase.APPROVED):
        return min(LOADS_EVERY_S, look_every_s)
    rest = max(0.0, state.opened.policy.dwell_s[state.stage] - state.watch.dwell_s)
    waits_for_dwell = state.phase is Phase.OBSERVING and (begun or rest > 0)
    return min(rest, look_every_s) if waits_for_dwell else look_every_s
