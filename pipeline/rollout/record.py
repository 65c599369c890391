"""The rollout's record: an append-only log of events, one object per epoch, written create-if-absent. `append` refuses
a skipped stage, traffic without the approval that the policy asks for, and superseding a canary that is observed. And
the models that may not be promoted, because they learned from data that had to be forgotten: a record an erasure. What
serves keeps serving, and what was trained on top of a blocked champion is not blocked: it never saw the data."""

import os
from collections.abc import Collection
from enum import StrEnum
from typing import Literal, NamedTuple

from pydantic import Field

from pipeline.core import layout
from pipeline.core.storage import ModelRef, Record, Store
from pipeline.rollout.evidence import LiveEvidence
from pipeline.rollout.policy import RolloutPolicy, approval_refusal

Action = Literal["resume", "abort", "pause", "approve", "rollback", "reopen"]
"""What a person can decide."""


class Phase(StrEnum):
    IDLE = "idle"
    PROPOSED = "proposed"
    GATED = "gated"
    """The files are what was judged; it waits for an approval, where the policy asks for one, and for its slot."""
    APPROVED = "approved"
    SHIFTING = "shifting"
    OBSERVING = "observing"
    HELD = "held"
    """A person is asked; the weight in force stays, and so do the looks."""
    ROLLING_BACK = "rolling_back"
    PROMOTED = "promoted"
    ROLLED_BACK = "rolled_back"
    ABORTED = "aborted"
    SUPERSEDED = "superseded"


TERMINAL = frozenset({Phase.PROMOTED, Phase.ROLLED_BACK, Phase.ABORTED, Phase.SUPERSEDED})
BEFORE_TRAFFIC = frozenset({Phase.PROPOSED, Phase.GATED, Phase.APPROVED})

_OUT = frozenset({Phase.HELD, Phase.ROLLING_BACK, Phase.SUPERSEDED})
LEGAL: dict[Phase, frozenset[Phase]] = {
    Phase.IDLE: frozenset({Phase.PROPOSED}),
    Phase.PROPOSED: frozenset({Phase.GATED, Phase.ROLLING_BACK, Phase.SUPERSEDED}),
    Phase.GATED: _OUT | {Phase.GATED, Phase.APPROVED, Phase.SHIFTING},
    Phase.APPROVED: _OUT | {Phase.APPROVED, Phase.SHIFTING},
    Phase.SHIFTING: frozenset({Phase.SHIFTING, Phase.OBSERVING, Phase.HELD, Phase.ROLLING_BACK}),
    Phase.OBSERVING: frozenset({Phase.OBSERVING, Phase.SHIFTING, Phase.HELD, Phase.ROLLING_BACK, Phase.PROMOTED}),
    Phase.HELD: _OUT | {Phase.GATED, Phase.APPROVED, Phase.SHIFTING},
    Phase.ROLLING_BACK: frozenset({Phase.ROLLING_BACK, Phase.ROLLED_BACK, Phase.ABORTED}),
    **{phase: frozenset({Phase.PROPOSED}) for phase in TERMINAL},
    Phase.PROMOTED: frozenset({Phase.PROPOSED, Phase.ROLLING_BACK}),
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
    """The gate's word on a candidate. `digest`: of the model that it judged; `reasons`: sentences with figures."""

    verdict: str
    digest: str
    bundle_digest: str
    reasons: tuple[str, ...] = ()


class Fingerprints(Record):
    """What both models answer to the same prompts, greedily, from their files: what their slots must answer too."""

    champion: tuple[str, ...] = ()
    candidate: tuple[str, ...] = ()


class Proposal(Record):
    """A candidate that passed the gate, the champion it was compared with, and the rule it is rolled out by."""

    rollout: str
    """Digest of model name, iteration and candidate: proposing the same again is the same rollout."""
    version: ModelVersion
    champion: ModelRef
    verdict: Literal["PASS"]
    bundle_digest: str
    policy: RolloutPolicy
    proposed_by: str = ""
    """Who launched the run that proposed it: anybody else may approve it."""
    reasons: tuple[str, ...] = ()
    fingerprints: Fingerprints = Fingerprints()


class LookResult(Record):
    """What a look leaves behind: its window, and what the stage adds up to with it."""

    window_start: float
    window_end: float
    judged_until: float
    """Until when it counts towards the dwell: grades may be complete for less than the window."""
    evidence: LiveEvidence
    tally: str = ""


class RolloutStep(Record):
    """What a rule decides of the active rollout: the phase and stage after it, why, and what it was decided on."""

    phase: Phase
    reason: str = ""
    stage: int = -1
    """-1: it stays at its stage."""
    look: LookResult | None = None
    missed: bool = False
    """Nothing usable was seen: no metrics, not the weight asked for, or no router."""
    unread: bool = False
    """It could not be seen yet: the next look begins where this one did."""
    unready: bool = False
    clock_went_back: bool = False
    """The clock was far behind the end of what was looked at: looks go on from there."""
    weight: int | None = None
    """Percent on the canary at which it is held, where that is not what its stage asked for."""
    quarantine: bool = False
    by: str = ""
    action: Action | None = None
    """`approve` is `by`'s word for exactly this rollout's model and evidence."""


class RolloutEvent(RolloutStep):
    """One step on record."""

    epoch: int
    at: float
    rollout: str
    stage: int = 0
    proposal: Proposal | None = None


class PastRollouts(Record):
    """The champions so far, and how the model's rollouts ended."""

    champion: ModelVersion | None = None
    champion_since: float = 0.0
    previous: ModelVersion | None = None
    promotions: int = 0
    quarantined: dict[str, int] = Field(default_factory=dict[str, int])
    """Digest of each model that was rolled back, and its version."""
    finished: dict[str, Phase] = Field(default_factory=dict[str, Phase])


class StageWatch(Record):
    evidence: LiveEvidence = LiveEvidence()
    tally: str = ""
    covered_s: float = 0.0
    """Time of this stage that fresh and usable metrics covered."""
    since: float = 0.0
    judged_until: float = 0.0
    """Until when this stage's looks count towards its dwell: the earlier of requests and grades."""
    watched_until: float = 0.0
    looks: int = 0
    misses: int = 0
    """Looks in a row that saw nothing usable."""
    unready: int = 0

    @property
    def dwell_s(self) -> float:
        """Time that counts: covered by metrics, and not newer than the newest complete grades."""
        return max(0.0, min(self.covered_s, self.judged_until - self.since))


class RolloutState(Record):
    """What the log says of the latest rollout of the model, and of those before it."""

    epoch: int = 0
    requested_epoch: int = 0
    """Epoch at which phase, stage or held weight last changed: traffic is asked for under it."""
    past: PastRollouts = PastRollouts()
    phase: Phase = Phase.IDLE
    stage: int = 0
    confirmed_stage: int = -1
    """Last stage whose weight was read back; -1 before the first."""
    weight_in_force: int = 0
    """Percent on the canary when its stage was last asked for, or while it is held."""
    offered: bool = False
    proposal: Proposal | None = None
    approved_by: str = ""
    reason: str = ""
    quarantine: bool = False
    watch: StageWatch = StageWatch()

    @property
    def opened(self) -> Proposal:
        """The proposal that opened the latest rollout; there has to be one."""
        assert self.proposal is not None, "no rollout was ever proposed"
        return self.proposal

    @property
    def rollout(self) -> str:
        return self.proposal.rollout if self.proposal else ""

    @property
    def active(self) -> bool:
        return self.phase not in TERMINAL and self.phase is not Phase.IDLE

    @property
    def confirmed_weight(self) -> int:
        """Percent on the canary that was last read back as asked for."""
        return self.opened.policy.canary_weights[self.confirmed_stage] if self.confirmed_stage >= 0 else 0

    @property
    def canary_weight(self) -> int:
        """Percent of traffic that the record asks for: a stage's weight, or 0."""
        if self.phase in (Phase.SHIFTING, Phase.OBSERVING):
            return self.opened.policy.canary_weights[self.stage]
        return self.weight_in_force if self.phase is Phase.HELD else 0

    @property
    def waits_for_approval(self) -> bool:
        return self.phase is Phase.GATED and bool(self.opened.policy.approvers)

    @property
    def waits_for_person(self) -> bool:
        """Whether nothing happens before somebody decides: no canary has requests."""
        return self.waits_for_approval or (self.phase is Phase.HELD and self.canary_weight == 0)

    @property
    def supersedable(self) -> bool:
        """Whether a newer candidate may take its place: before traffic, or held at its first weight at the most. A
        rollout that is being observed goes on, or a candidate each night would end every dwell."""
        if self.phase is not Phase.HELD:
            return self.phase in BEFORE_TRAFFIC
        return self.weight_in_force <= self.opened.policy.weights[0]

    @property
    def warm_until(self) -> float:
        """Until when the champion before the promoted one stays loaded; 0 unless the rollout ended in a promotion."""
        if self.phase is not Phase.PROMOTED:
            return 0.0
        return self.past.champion_since + self.opened.policy.keep_warm_s


def read_events(store: Store, model_name: str, after: int = 0) -> list[RolloutEvent]:
    """The log after an epoch, in order. Raises ValueError when an event is unreadable or any of the log is missing."""
    folder, events = store.path(layout.rollout(model_name, "events")), list[RolloutEvent]()
    names = os.listdir(folder) if folder.is_dir() else ()  # noqa: PTH208 (of thousands, names alone)
    epochs = {int(name[:-5]) for name in names if name[:-5].isdigit()}
    newest = max(epochs, default=0)
    for epoch in range(after + 1 if len(epochs) == newest else 1, newest + 1):
        name = event_file(model_name, epoch)
        event = store.read(name, RolloutEvent)
        if event is None:
            raise ValueError(f"{store.path(name)} is missing, though later events are there. Restore it from a backup.")
        events.append(event)
    return events


def append(store: Store, model_name: str, state: RolloutState, event: RolloutEvent) -> bool:
    """Publish the event that follows `state`. False when somebody else's took its place: read again."""
    assert event.epoch == state.epoch + 1, f"epoch {event.epoch} does not follow {state.epoch}"
    assert event.phase in LEGAL[state.phase], f"{state.phase} does not lead to {event.phase}"
    assert (event.proposal is not None) == (event.phase is Phase.PROPOSED), "a proposal opens a rollout"
    assert event.phase is not Phase.SHIFTING or event.stage <= state.confirmed_stage + 1, "a stage was skipped"
    assert event.phase is not Phase.SUPERSEDED or state.supersedable, "a canary with evidence is not superseded"
    if event.proposal is None:
        approves, policy = event.action == "approve", state.opened.policy
        assert event.rollout == state.rollout, "an event of something else"
        may = not approves or not approval_refusal(event.by, policy.approvers, state.opened.proposed_by)
        assert may, "approved by somebody who may not"
        if event.phase in (Phase.APPROVED, Phase.SHIFTING):
            assert approves or state.approved_by or not policy.approvers, "it was not approved"
    return store.create(event_file(model_name, event.epoch), event)


def step_event(state: RolloutState, now: float, step: RolloutStep) -> RolloutEvent:
    """The event that follows `state` within its rollout."""
    stage = state.stage if step.stage < 0 else step.stage
    own = {"epoch": state.epoch + 1, "at": now, "rollout": state.rollout, "stage": stage}
    return RolloutEvent.model_validate({**dict(step), **own})


def event_file(model_name: str, epoch: int) -> str:
    return layout.rollout(model_name, "events", f"{epoch:06d}.json")


class ErasureBlock(Record):
    """What one erasure blocks. An iteration that has no model yet is blocked with all that it may still make."""

    proof: str
    digests: tuple[str, ...]
    iterations: tuple[str, ...]

    @property
    def reason(self) -> str:
        return f"it learned from data that erasure {self.proof} removed"


def block(store: Store, new_block: ErasureBlock) -> None:
    """Put the block on record, and into the folder of every training that it is about, which its trainer reads."""
    store.write(f"{layout.BLOCKS}/{new_block.proof}.json", new_block)
    for id in new_block.iterations:
        store.write(layout.iteration(id, layout.TRAINING, layout.BLOCKED_FILE), new_block)


def blocking(store: Store, iteration: str, digests: Collection[str] = ()) -> list[ErasureBlock]:
    """The blocks of an iteration, or of what it made."""
    return [each for each in blocks(store) if iteration in each.iterations or not set(digests).isdisjoint(each.digests)]


def blocks(store: Store) -> list[ErasureBlock]:
    names = sorted(f"{layout.BLOCKS}/{path.name}" for path in store.path(layout.BLOCKS).glob("*.json"))
    return [each for name in names if (each := store.read(name, ErasureBlock))]


def blocked(store: Store, version: ModelVersion) -> str:
    """Why this version may not be promoted, or nothing."""
    for each in blocking(store, version.iteration, (version.model.digest, version.adapter.digest)):
        return f"version {version.version} is blocked: {each.reason}"
    return ""
