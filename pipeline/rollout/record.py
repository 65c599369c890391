"""The rollout's record: an append-only log of events in the store, and the state that it folds to.

One object per epoch, written create-if-absent, so whoever loses a race re-reads; nothing is ever changed. Owns the
legal transitions. Refuses to decide one, to look at traffic or metrics, and to read a clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from functools import reduce
from typing import Literal, NamedTuple

from pydantic import Field

from pipeline import layout
from pipeline.rollout.policy import LiveEvidence, LiveMetrics, RolloutPolicy
from pipeline.storage import ModelRef, Record, Store


class Phase(StrEnum):
    IDLE = "idle"
    """No rollout was ever proposed."""
    PROPOSED = "proposed"
    GATED = "gated"
    SHIFTING = "shifting"
    OBSERVING = "observing"
    HELD = "held"
    ROLLING_BACK = "rolling_back"
    PROMOTED = "promoted"
    ROLLED_BACK = "rolled_back"
    ABORTED = "aborted"


TERMINAL = frozenset({Phase.PROMOTED, Phase.ROLLED_BACK, Phase.ABORTED})

LEGAL: dict[Phase, frozenset[Phase]] = {
    Phase.IDLE: frozenset({Phase.PROPOSED}),
    Phase.PROPOSED: frozenset({Phase.GATED, Phase.ROLLING_BACK}),
    Phase.GATED: frozenset({Phase.SHIFTING, Phase.ROLLING_BACK}),
    Phase.SHIFTING: frozenset({Phase.SHIFTING, Phase.OBSERVING, Phase.HELD, Phase.ROLLING_BACK}),
    Phase.OBSERVING: frozenset({Phase.OBSERVING, Phase.SHIFTING, Phase.HELD, Phase.ROLLING_BACK, Phase.PROMOTED}),
    Phase.HELD: frozenset({Phase.HELD, Phase.SHIFTING, Phase.ROLLING_BACK}),
    Phase.ROLLING_BACK: frozenset({Phase.ROLLED_BACK, Phase.ABORTED}),
    **{phase: frozenset({Phase.PROPOSED}) for phase in TERMINAL},
}


class ModelVersion(Record):
    """A registered version: `model` is what is served, `adapter` what was trained on top of the champion."""

    name: str
    version: int
    run_id: str
    model: ModelRef
    adapter: ModelRef
    iteration: str


class JudgedCandidate(NamedTuple):
    """The gate's word on a candidate: its verdict, the digest of the model that it judged, and of the evidence."""

    verdict: str
    digest: str
    bundle_digest: str


class Proposal(Record):
    """A candidate that passed the gate, the champion it was compared with, and the rule it is rolled out by."""

    rollout: str
    """Digest of model name, iteration and candidate: proposing the same again is the same rollout."""
    version: ModelVersion
    champion: ModelRef
    verdict: Literal["PASS"]
    bundle_digest: str
    policy: RolloutPolicy


class RolloutEvent(Record):
    """One step: the phase and stage after it, why, and what it was decided on."""

    epoch: int
    at: float
    rollout: str
    phase: Phase
    stage: int = 0
    reason: str = ""
    proposal: Proposal | None = None
    """Opens a rollout."""
    look: LiveMetrics | None = None
    """Evidence that counts from here on."""
    missed: bool = False
    """Nothing usable was seen, neither metrics nor the weight asked for."""
    quarantine: bool = False
    """The rollback is the candidate's fault."""
    by: str = ""
    """Who decided it, where a person did."""


class RolloutState(Record):
    """What the log says: the champions so far, and the latest rollout of the model."""

    epoch: int = 0
    turn: int = 0
    """Epoch at which phase or stage last changed: the one that traffic is asked for by."""
    champion: ModelVersion | None = None
    """The promoted version; None while the base model is the champion."""
    champion_since: float = 0.0
    """When it was promoted, in seconds since 1970."""
    previous: ModelVersion | None = None
    promotions: int = 0
    quarantined: dict[str, int] = Field(default_factory=dict[str, int])
    """Digest of each model that was rolled back, and its version."""
    finished: dict[str, Phase] = Field(default_factory=dict[str, Phase])
    """How each rollout that is over ended."""
    phase: Phase = Phase.IDLE
    stage: int = 0
    settled: int = -1
    """Last stage whose weight was read back; -1 before the first."""
    proposal: Proposal | None = None
    reason: str = ""
    quarantine: bool = False
    evidence: LiveEvidence = LiveEvidence()
    dwell_s: float = 0.0
    """Time of this stage that fresh and usable metrics covered."""
    looks: int = 0
    misses: int = 0
    """Looks in a row that saw nothing usable."""
    watched_until: float = 0.0
    """End of what was looked at, usable or not."""

    @property
    def rollout(self) -> str:
        return self.proposal.rollout if self.proposal else ""

    @property
    def active(self) -> bool:
        return self.phase not in TERMINAL and self.phase is not Phase.IDLE

    @property
    def canary_weight(self) -> int:
        """Percent of traffic that the record asks for: a stage's weight, or 0."""
        assert self.proposal is not None, "no rollout, no weight"
        weights = self.proposal.policy.weights
        if self.phase in (Phase.SHIFTING, Phase.OBSERVING):
            return weights[self.stage]
        return weights[self.settled] if self.phase is Phase.HELD and self.settled >= 0 else 0


def fold(events: Iterable[RolloutEvent]) -> RolloutState:
    """The state after these events, which are in epoch order from 1. Pure."""
    return reduce(_after, events, RolloutState())


def read_events(store: Store, model_name: str) -> list[RolloutEvent]:
    """The log, in order. Raises ValueError when an event is unreadable or missing."""
    written = len(list(store.path(layout.rollout(model_name, "events")).glob("[0-9]*.json")))
    events = [store.read(_name(model_name, epoch), RolloutEvent) for epoch in range(1, written + 1)]
    if None in events:
        gap = store.path(_name(model_name, events.index(None) + 1))
        raise ValueError(f"{gap} is missing, though later events are there. Restore it from a backup.")
    return [event for event in events if event is not None]


def read_state(store: Store, model_name: str) -> RolloutState:
    return fold(read_events(store, model_name))


def append(store: Store, model_name: str, state: RolloutState, event: RolloutEvent) -> bool:
    """Publish the event that follows `state`. False when somebody else's took its place: read again."""
    assert event.epoch == state.epoch + 1, f"epoch {event.epoch} does not follow {state.epoch}"
    assert event.phase in LEGAL[state.phase], f"{state.phase} does not lead to {event.phase}"
    assert (event.proposal is not None) == (event.phase is Phase.PROPOSED), "a proposal opens a rollout"
    assert event.phase is not Phase.SHIFTING or event.stage <= state.settled + 1, "a stage was skipped"
    return store.create(_name(model_name, event.epoch), event)


class RolloutStep(NamedTuple):
    """What a rule decides of the active rollout, before it is an event."""

    phase: Phase
    reason: str
    stage: int | None = None
    """None: it stays at its stage."""
    look: LiveMetrics | None = None
    missed: bool = False
    quarantine: bool = False
    by: str = ""


def step_event(state: RolloutState, now: float, step: RolloutStep) -> RolloutEvent:
    """The event that follows `state` within its rollout."""
    return RolloutEvent(
        epoch=state.epoch + 1,
        at=now,
        rollout=state.rollout,
        phase=step.phase,
        stage=state.stage if step.stage is None else step.stage,
        reason=step.reason,
        look=step.look,
        missed=step.missed,
        quarantine=step.quarantine,
        by=step.by,
    )


def covered_s(state: RolloutState, look: LiveMetrics, at: float) -> float:
    """Seconds that a look adds to the dwell: its window, without what was watched before."""
    return max(0.0, min(look.window_end, at) - max(look.window_start, state.watched_until))


def _name(model_name: str, epoch: int) -> str:
    return layout.rollout(model_name, "events", f"{epoch:06d}.json")


def _after(state: RolloutState, event: RolloutEvent) -> RolloutState:
    assert event.epoch == state.epoch + 1, f"event {event.epoch} follows {state.epoch} in the log"
    moved = (event.phase, event.stage) != (state.phase, state.stage) or event.proposal is not None
    resumed = state.phase is Phase.HELD and event.phase is Phase.SHIFTING
    still_held = state.phase is event.phase is Phase.HELD  # what a look saw meanwhile is not why it is held
    change: dict[str, object] = {
        "epoch": event.epoch,
        "turn": event.epoch if moved else state.turn,
        "phase": event.phase,
        "stage": event.stage,
        "reason": state.reason if still_held else event.reason,
    }
    if event.proposal is not None:
        kept = {"champion", "champion_since", "previous", "promotions", "quarantined", "finished"}
        state = RolloutState(**{key: getattr(state, key) for key in kept})
        return state.model_copy(update={**change, "proposal": event.proposal})
    assert state.proposal is not None, "an event belongs to a rollout"
    evidence = state.evidence
    if event.look is not None:
        evidence = evidence.plus(event.look, state.proposal.policy)
        change |= {"dwell_s": state.dwell_s + covered_s(state, event.look, event.at)}
    if event.look is not None or event.missed:
        change |= {"looks": state.looks + 1, "misses": state.misses + 1 if event.missed else 0}
        change |= {"watched_until": max(state.watched_until, event.look.window_end if event.look else event.at)}
    change |= {"evidence": evidence}
    if event.phase is Phase.SHIFTING and not event.missed:
        change |= {"evidence": evidence.resumed() if resumed else evidence.fresh(), "dwell_s": 0.0, "misses": 0}
        change |= {"watched_until": max(state.watched_until, event.at)}
    elif event.phase is Phase.OBSERVING and state.phase is Phase.SHIFTING:
        change |= {"settled": event.stage, "misses": 0, "watched_until": max(state.watched_until, event.at)}
    elif event.phase is Phase.ROLLING_BACK:
        change |= {"quarantine": event.quarantine}
    if event.phase in TERMINAL:
        change |= {"finished": {**state.finished, state.proposal.rollout: event.phase}}
        change |= _outcome(state, state.proposal.version, event)
    return state.model_copy(update=change)


def _outcome(state: RolloutState, version: ModelVersion, event: RolloutEvent) -> dict[str, object]:
    if event.phase is Phase.PROMOTED:
        serving = {"champion": version, "champion_since": event.at, "previous": state.champion}
        return {**serving, "promotions": state.promotions + 1}
    if event.phase is Phase.ROLLED_BACK:
        return {"quarantined": {**state.quarantined, version.model.digest: version.version}}
    return {}
