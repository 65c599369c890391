"""Lets a candidate into the rollout; traffic moves with the next tick."""

from datetime import UTC, datetime
from typing import NamedTuple

from pipeline.core.iteration import Iteration
from pipeline.core.storage import ModelRef, Record, Store, digest_json
from pipeline.rollout.fold import read_state
from pipeline.rollout.policy import RolloutPolicy
from pipeline.rollout.record import (
    Fingerprints,
    JudgedCandidate,
    ModelVersion,
    Phase,
    Proposal,
    RolloutEvent,
    RolloutState,
    RolloutStep,
    append,
    blocked,
    step_event,
)
from pipeline.training.result import Health


class ChampionState(Record):
    """The champion. `promotions` counts the champions after the base model: the next iteration's number."""

    model: ModelRef
    version: int
    promotions: int
    since: datetime | None = None


class ProposalResult(Record):
    """The rollout's state, and why the candidate was not let in; empty when its rollout is on record. `waits`: another
    rollout is in its way, so it is to be proposed again."""

    state: RolloutState
    refused: str = ""
    waits: bool = False


class RolloutCandidate(NamedTuple):
    """A registered version, the gate's word on it, and who launched the run, and so may not approve it."""

    version: ModelVersion
    judged: JudgedCandidate
    proposed_by: str = ""
    fingerprints: Fingerprints = Fingerprints()


def champion(store: Store, model_name: str) -> ChampionState | None:
    """The promoted model, or None while the base model serves."""
    past = read_state(store, model_name).past
    if past.champion is None:
        return None
    version, since = past.champion, datetime.fromtimestamp(past.champion_since, UTC)
    return ChampionState(model=version.model, version=version.version, promotions=past.promotions, since=since)


def propose(
    store: Store, iteration: Iteration, candidate: RolloutCandidate, policy: RolloutPolicy, now: float
) -> ProposalResult:
    """Open the candidate's rollout, once per iteration and model digest: proposing it again changes nothing. A rollout
    that has no traffic yet, or is held at its first weight at the most, makes way for a newer version; any other is
    waited for. Raises ValueError when the gate judged another model."""
    version, judged = candidate.version, candidate.judged
    if judged.digest != version.model.digest:
        raise ValueError(
            f"The verdict is about model {judged.digest[:12]}, the version holds {version.model.digest[:12]}. "
            "Evaluate the model that is proposed."
        )
    name, digest = iteration.model_name, version.model.digest
    rollout = digest_json([name, iteration.id, digest])[:12]
    while True:
        state = read_state(store, name)
        if rollout == state.rollout:
            return ProposalResult(state=state)
        if refused := blocked(store, version) or _refusal(state, rollout, iteration, judged.verdict, digest):
            return ProposalResult(state=state, refused=refused)
        if state.supersedable and version.version > state.opened.version.version:
            reason = f"a newer candidate passed: version {version.version}"
            step = RolloutStep(phase=Phase.SUPERSEDED, reason=reason)
            append(store, name, state, step_event(state, now, step))
            continue
        if waits := _in_the_way(state, now):
            return ProposalResult(state=state, refused=waits, waits=True)
        proposal = Proposal(
            rollout=rollout,
            version=version,
            champion=iteration.champion,
            verdict="PASS",
            bundle_digest=judged.bundle_digest,
            policy=policy,
            proposed_by=candidate.proposed_by,
            reasons=judged.reasons,
            fingerprints=candidate.fingerprints,
        )
        event = RolloutEvent(epoch=state.epoch + 1, at=now, rollout=rollout, phase=Phase.PROPOSED, proposal=proposal)
        append(store, name, state, event)


def on_hold(health: Health, iteration: str, accepted: str) -> str:
    """Why the candidate of a training on HOLD is not rolled out, and how it would be; empty when it may be."""
    if health.verdict == "STOP":
        return f"The training stopped itself: {health.why}. Its candidate is not rolled out. Start a new iteration."
    if health.verdict == "PASS" or accepted == iteration:
        return ""
    return (
        f"The training is on {health.verdict}: {health.why}. Look at its plots and completions; to roll the candidate "
        f"out all the same, set rollout.accept_hold to {iteration!r} in the recipe, as the command of pt status does."
    )


def _refusal(state: RolloutState, rollout: str, iteration: Iteration, verdict: str, digest: str) -> str:
    if verdict != "PASS":
        return f"the verdict is {verdict}"
    if rollout in state.past.finished:
        return f"rollout {rollout} is over: {state.past.finished[rollout]}"
    if digest in state.past.quarantined:
        return f"model {digest[:12]} is quarantined: it was rolled back as version {state.past.quarantined[digest]}"
    if digest == iteration.champion.digest:
        return f"model {digest[:12]} is the champion already"
    if iteration.champion.digest in state.past.quarantined:
        return f"it was compared with {iteration.champion.digest[:12]}, which was rolled back"
    if state.past.champion is not None and state.past.champion.model.digest != iteration.champion.digest:
        return f"it was compared with {iteration.champion.digest[:12]}, which is no longer the champion"
    return ""


def _in_the_way(state: RolloutState, now: float) -> str:
    if state.phase is Phase.HELD:
        return (
            f"rollout {state.rollout} is held at {state.canary_weight}%: {state.reason}. Resume or abort it: "
            "pt rollout status"
        )
    if state.active:
        return f"rollout {state.rollout} is {state.phase}"
    if now < state.warm_until:
        until = datetime.fromtimestamp(state.warm_until, UTC)
        return f"the champion before {state.rollout} stays loaded as the way back until {until:%Y-%m-%d %H:%M} UTC"
    return ""


def in_training_way(state: RolloutState) -> str:
    """Why no candidate is trained during this rollout: it would wait for its end, and be dropped with the champion that
    it was compared with. "" without one, and where it waits for a person and makes way for a newer candidate."""
    waits_for_person = state.phase is Phase.HELD or state.waits_for_approval
    if not state.active or (waits_for_person and state.supersedable):
        return ""
    where = f"is {state.phase} at {state.canary_weight}%{f': {state.reason}' if state.reason else ''}"
    return f"rollout {state.rollout} of version {state.opened.version.version} {where}"
