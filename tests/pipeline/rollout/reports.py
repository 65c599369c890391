"""Statuses to be shown, without a rollout behind them."""

from typing import Any

from pipeline.core.storage import ModelRef
from pipeline.recipe import Rollout
from pipeline.rollout.evidence import ArmSums, LiveEvidence
from pipeline.rollout.policy import policy_of
from pipeline.rollout.record import ModelVersion, Phase, Proposal, RolloutState, StageWatch
from pipeline.rollout.shares import Ratio
from pipeline.views.rollout import RolloutStatus

NOW = 1_800_000_000.0


def arm(requests: float, right: float = 0.7) -> ArmSums:
    """Of users who ask ten times, and of whose answers 96% are graded."""
    users = requests / 10
    return ArmSums(
        quality=Ratio(hits=requests * right, trials=requests, units=users),
        errors=Ratio(hits=requests * 0.01, trials=requests, units=users),
        slow=Ratio(hits=requests * 0.012, trials=requests, units=users),
        coverage=Ratio(hits=requests, trials=requests / 0.96, units=users),
    )


EVIDENCE = LiveEvidence(champion=arm(1125), canary=arm(375, 0.69), slow_over_s=2.3)


def report(
    phase: Phase = Phase.OBSERVING,
    *,
    evidence: LiveEvidence = EVIDENCE,
    policy: dict[str, Any] | None = None,
    reason: str = "no harm is proven",
    weight: int = 25,
    **others: Any,
) -> RolloutStatus:
    """Observing at 25% of 5, 25 and 95, with two thirds of its dwell covered. `policy`: what is changed in it."""
    watch = StageWatch(evidence=evidence, covered_s=400.0, judged_until=400.0, looks=12)
    changed = proposal().policy.model_copy(update={"dwell_s": (600.0,) * 3, **(policy or {})})
    state = RolloutState(
        phase=phase, stage=1, watch=watch, proposal=proposal().model_copy(update={"policy": changed}), reason=reason
    )
    known = {"last_look": "no harm is proven", "waits_for": "the next look", "decisions": ("abort",), **others}
    return RolloutStatus(
        model="desk", serving_version=6, serving_digest="77aa" * 16, state=state, since=NOW - 600, weight=weight,
        router=weight, last_look_at=NOW - 30, wanted_graded=1518, **known,
    )  # fmt: skip


def bare() -> RolloutStatus:
    """A model that was never rolled out."""
    return RolloutStatus(
        model="desk", serving_version=0, serving_digest="77aa" * 16, state=RolloutState(), waits_for="a candidate"
    )


def proposal(
    rollout: str = "3f9c1a2b4d5e", digest: str = "8c1d" * 16, bundle: str = "b07d" * 16, proposed_by: str = ""
) -> Proposal:
    candidate = ModelRef(uri="candidate", digest=digest)
    version = ModelVersion(name="desk", version=7, run_id="run", model=candidate, adapter=candidate, iteration="5d0c")
    return Proposal(
        rollout=rollout,
        version=version,
        champion=ModelRef(uri="base", digest="77aa" * 16),
        verdict="PASS",
        bundle_digest=bundle,
        policy=policy_of(Rollout()).model_copy(update={"approvers": ("ada", "bob")}),
        proposed_by=proposed_by,
    )
