"""Statuses to be shown, without a rollout behind them."""

from typing import Any

from pipeline.core.estimate import Estimate
from pipeline.core.storage import ModelRef
from pipeline.recipe import Rollout
from pipeline.rollout.policy import policy_of
from pipeline.rollout.record import ModelVersion, Phase, Proposal
from pipeline.rollout.status import ArmStatus, RolloutStatus

NOW = 1_800_000_000.0


def arm(requests: float, quality: float = 0.7, **others: Any) -> ArmStatus:
    interval = Estimate(value=quality, low=quality - 0.02, high=quality + 0.02, n=round(requests))
    fields = {"graded": requests, "errors": 0.01, "slow": 0.012, "users": requests / 10, "labelled": 0.96, **others}
    return ArmStatus(requests=requests, quality=interval, **fields)


def report(phase: Phase = Phase.OBSERVING, stage: int = 1, weight: int = 25, **others: Any) -> RolloutStatus:
    """Observing at 25% of 5, 25 and 100, with two thirds of its dwell covered."""
    fields: dict[str, Any] = {
        "rollout": "3f9c1a2b4d5e",
        "candidate": proposal().version,
        "since": NOW - 600,
        "weights": (5, 25, 100),
        "router": weight,
        "reason": "no harm is proven",
        "looks": 12,
        "last_look": "no harm is proven",
        "last_look_at": NOW - 30,
        "dwell_s": 400.0,
        "wanted_dwell_s": 600.0,
        "wanted_graded": 1518,
        "slow_over_s": 2.3,
        "champion": arm(1125),
        "canary": arm(375, 0.69),
        "waits_for": "the next look",
        "decisions": ("abort",),
        **others,
    }
    return RolloutStatus(
        model="desk", serving_version=6, serving_digest="77aa" * 16, phase=phase, stage=stage, weight=weight, **fields
    )


def bare() -> RolloutStatus:
    """A model that was never rolled out."""
    return RolloutStatus(
        model="desk", serving_version=0, serving_digest="77aa" * 16, phase=Phase.IDLE, waits_for="a candidate"
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
