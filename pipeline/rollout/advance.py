"""The advance test, non-inferiority at one-sided 5%, once a stage when dwell and sample are complete; and the timeout.
The sample is fixed before, on the champion's share of right answers and the clustering."""

import math

from pipeline.rollout.evidence import MIN_GRADED, POWER_Z, LiveEvidence
from pipeline.rollout.harm import more_errors, quality_drop, slower
from pipeline.rollout.policy import RolloutPolicy
from pipeline.rollout.shares import MIN_USERS, enough

LEVEL_Z = 1.645
"""One-sided 5%."""
ERROR_RATE = 0.01
"""The champion's error rate that a rollout without grades is planned for, where it has fewer errors."""
LEAST_GRADED = 0.5
"""Share of the canary's answers that are graded, below which grades are what is missing, and not requests."""


def sample_size(quality: float, margin: float, weight: float, design_effect: float = 1.0) -> float:
    """Graded canary answers for power .8 when both models are equal; infinite without a margin or a champion.
    `quality`: share of right answers. `weight`: percent on the canary, the rest being the champion's."""
    if margin <= 0 or weight >= 100:
        return math.inf
    return math.ceil(design_effect * quality * (1 - quality) * (POWER_Z / margin) ** 2 / (1 - weight / 100))


def wanted_graded(evidence: LiveEvidence, policy: RolloutPolicy, weight: int) -> int:
    """Graded canary answers at which the advance test is taken; 0 where none can be graded (`wanted_requests`). With
    `auto`, what is known so far until `evidence.basis` is complete, and fixed from then on. Never fewer than the
    comparison takes."""
    if not policy.gradable:
        return 0
    if policy.min_canary_requests != "auto":
        return max(policy.min_canary_requests, MIN_GRADED)
    basis = evidence.basis
    quality, design_effect = (basis.quality, basis.design_effect or 1.0) if basis else (0.5, 1.0)
    wanted = sample_size(quality, policy.max_quality_drop, weight, design_effect)
    if wanted == math.inf:
        raise ValueError(
            f"At a margin of {policy.max_quality_drop:g} and {weight}% on the canary no number of answers is enough. "
            "Set rollout.max_quality_drop above 0, or rollout.min_canary_requests to a number."
        )
    if basis is None or basis.design_effect is None:  # what the clustering costs is not measured yet
        wanted = max(wanted, evidence.canary.graded + 1)
    return max(int(wanted), MIN_GRADED)


def wanted_requests(evidence: LiveEvidence, policy: RolloutPolicy, weight: int) -> int:
    """Canary requests at which the advance test is taken where nothing can be graded; else 0. With `auto`, as many as
    see an error rate at the limit with power .8."""
    if policy.gradable:
        return 0
    if policy.min_canary_requests != "auto":
        return policy.min_canary_requests
    limit, share, champion = policy.max_error_rate_ratio, weight / 100, evidence.champion.errors
    rate = max(ERROR_RATE, champion.share if champion.trials >= MIN_GRADED else 0.0)
    odds = (1 - rate) / rate * (1 + share / (1 - share))
    return math.ceil(POWER_Z**2 * odds / max(limit - 1, 0.1) ** 2)


def missing_sample(evidence: LiveEvidence, policy: RolloutPolicy, weight: int) -> str:
    """What the sample still lacks, or "" when the advance test may be taken once the dwell is over."""
    for what, seen, wanted in (
        ("graded canary answers", evidence.canary.graded, wanted_graded(evidence, policy, weight)),
        ("canary requests", evidence.canary.requests, wanted_requests(evidence, policy, weight)),
        ("graded champion answers", evidence.champion.graded, MIN_GRADED if policy.gradable else 0),
        ("champion requests", evidence.champion.requests, 0 if policy.gradable else MIN_GRADED),
    ):
        if seen < wanted:
            return f"{seen:.0f} of {wanted} {what}"
    return ""


def non_inferiority_failure(evidence: LiveEvidence, policy: RolloutPolicy) -> str:
    """Why the advance test fails, with its numbers; or "". Take it once, when nothing is awaited."""

    def proves(excess: float, spread: float, scale: float) -> bool:
        return excess > LEVEL_Z * math.sqrt(spread)

    return _quality(evidence, policy) or more_errors(evidence, policy, proves) or slower(evidence, policy, proves)


def _quality(evidence: LiveEvidence, policy: RolloutPolicy) -> str:
    if not policy.gradable:
        return ""
    arms = evidence.champion.quality, evidence.canary.quality
    for name, arm in zip(("champion", "canary"), arms, strict=True):
        if arm.trials < MIN_GRADED:
            return f"the {name} has {arm.trials:.0f} graded answers, {MIN_GRADED} needed to compare"
        if not enough(arm, policy.unit, MIN_GRADED):
            return (
                f"the {name} has {arm.units:.0f} users with graded answers, {MIN_USERS} needed: harm of quality cannot "
                "be proven at this weight. Give the stage a larger one"
            )
    drop, error = quality_drop(evidence), math.sqrt(evidence.quality_variance(policy.unit))
    if drop + LEVEL_Z * error < policy.max_quality_drop:
        return ""
    return (
        f"quality fell by {drop:.3f} +- {LEVEL_Z * error:.3f}: not proven to be less than {policy.max_quality_drop:g} "
        f"with {evidence.canary.graded:.0f} graded canary answers"
    )


def stage_timeout(lacks: str, evidence: LiveEvidence, policy: RolloutPolicy, covered_s: float, dwell_s: float) -> str:
    """Why a stage that still lacks something is not to wait on, with what would help; "" while it may. `covered_s`:
    seconds of the stage that usable metrics covered. `dwell_s`: those that it is observed in any case."""
    if policy.max_wait_s is None or covered_s <= dwell_s + policy.max_wait_s:
        return ""
    ways = "give the stage a larger share of the requests (rollout.weights)"
    if not evidence.canary.requests:
        ways = "the canary got no request: look at the router and at what production asks"
    elif policy.gradable and evidence.canary.graded < LEAST_GRADED * evidence.canary.requests:
        ways = "most of the canary's answers have no grade: give references, a judge, or collect more feedback"
    waited = f"{lacks} after {covered_s:.0f} s with metrics, over {dwell_s + policy.max_wait_s:.0f} s (dwell and "
    return f"{waited}rollout.max_wait_s). {ways.capitalize()}; resume it to wait as long again, or abort it."
