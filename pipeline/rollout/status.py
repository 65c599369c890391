"""The rollout's status for a person: where it stands, what was measured, what it waits for, and what may be decided."""

import math
from collections.abc import Sequence

from pipeline.core.estimate import Z95, Estimate
from pipeline.core.storage import Record
from pipeline.rollout.decision import decisions
from pipeline.rollout.fold import fold
from pipeline.rollout.policy import RolloutPolicy
from pipeline.rollout.propose import ChampionState
from pipeline.rollout.record import Action, Phase, RolloutEvent, RolloutState
from pipeline.rollout.router import Split, Unrouted, Unsettled
from pipeline.rollout.rules import blind_spots, wanted_graded
from pipeline.rollout.shares import Ratio, variance

NOTHING = "nothing: a candidate that passes the gate is registered, and people deploy it"
"""What a deployment without a router waits for."""
UNROUTED = "rollout.traffic to name the router that it began with"


class RolloutStatus(Record):
    """The model's latest rollout, as its log has it (`state`), and what is known besides."""

    model: str
    serving_version: int
    """0 is the recipe's base model."""
    serving_digest: str
    state: RolloutState
    routed: bool = True
    """Whether the deployment has a router; without one `router_reason` says what that means."""
    since: float | None = None
    """Seconds since the epoch at which phase and stage became what they are."""
    weight: int = 0
    router: int | None = None
    """Percent on the canary that the router reads; None when it reads no split of this rollout."""
    router_reason: str = ""
    by: str = ""
    last_look: str = ""
    last_look_at: float | None = None
    wanted_graded: int = 0
    waits_for: str = ""
    cannot_see: tuple[str, ...] = ()
    decisions: tuple[Action, ...] = ()


def status(
    model_name: str, serving: ChampionState, events: Sequence[RolloutEvent], split: Split | Unsettled | None, now: float
) -> RolloutStatus:
    """`events`: the whole log. `serving`: the champion. `split`: what the router reads. Pure."""
    state = fold(events)
    bare = RolloutStatus(
        model=model_name,
        serving_version=serving.version,
        serving_digest=serving.model.digest,
        state=state,
        routed=not isinstance(split, Unrouted),
        router_reason=split.reason if isinstance(split, Unsettled) else "",
    )
    if state.proposal is None:
        return bare.model_copy(update={"waits_for": "a candidate that passes the gate" if bare.routed else NOTHING})
    policy = state.proposal.policy
    looked = [e for e in events if e.rollout == state.rollout and (e.look is not None or e.missed)]
    by_people = [e for e in events if e.rollout == state.rollout and e.by][-1:]
    lasting = [e.by for e in by_people if e.epoch == state.requested_epoch or e.phase is Phase.ROLLING_BACK]
    return bare.model_copy(
        update={
            "since": events[state.requested_epoch - 1].at,
            "by": lasting[0] if lasting else "",
            "weight": state.canary_weight,
            "router": split.canary_weight if isinstance(split, Split) and split.rollout == state.rollout else None,
            "last_look": looked[-1].reason if looked else "",
            "last_look_at": looked[-1].at if looked else None,
            "wanted_graded": wanted_graded(state.watch.evidence, policy, policy.weight_at(state.stage)),
            "waits_for": _waits_for(state) if bare.routed else UNROUTED if state.active else NOTHING,
            "cannot_see": blind_spots(state.watch.evidence, policy) if state.active else (),
            "decisions": decisions(state, now),
        }
    )


def share_estimate(ratio: Ratio, policy: RolloutPolicy) -> Estimate:
    """A share with its 95% interval, of users who come back; from 0 to 1 while too little is known."""
    if not ratio.trials:
        return Estimate(value=None, low=None, high=None, n=0)
    width = Z95 * math.sqrt(variance(ratio, policy.unit))
    value, n = ratio.share, round(ratio.trials)
    return Estimate(value=value, low=max(0.0, value - width), high=min(1.0, value + width), n=n)


def _waits_for(state: RolloutState) -> str:
    policy = state.opened.policy
    match state.phase:
        case Phase.PROPOSED:
            return "a look at the files of both models"
        case Phase.GATED if policy.needs_approval:
            by = state.opened.proposed_by or "nobody on record"
            return f"one of {', '.join(policy.approvers)} to approve it, who did not propose it ({by} did)"
        case Phase.GATED | Phase.APPROVED:
            return f"its slot to serve it, then its first weight, {policy.weights[0]}%"
        case Phase.SHIFTING:
            return f"the router to read {state.canary_weight}%"
        case Phase.OBSERVING:
            return "the next look, until dwell and answers suffice"
        case Phase.HELD:
            return "a person: resume or abort it"
        case Phase.ROLLING_BACK:
            return "the router to read 0%"
        case _:
            return "the next candidate that passes the gate"
