"""When a stage has waited long enough for what it lacks, so that a person is asked instead of time going by.

Its time is what usable metrics covered, so no clock that jumps and no controller that was away makes a stage overdue.
Refuses to decide: controller.py holds the rollout.
"""

from __future__ import annotations

import math

from pipeline.rollout.advance import wanted_graded, wanted_requests
from pipeline.rollout.evidence import LiveEvidence
from pipeline.rollout.policy import RolloutPolicy

DAY_S = 86_400.0
LEAST_GRADED = 0.5
"""Share of the canary's answers that are graded, below which grades are what is missing, and not requests."""


def overdue(
    lacks: str, evidence: LiveEvidence, policy: RolloutPolicy, weight: int, covered_s: float, dwell_s: float
) -> str:
    """Why a stage that still lacks something is not to wait on, with what would help; "" while it may.

    `covered_s`: seconds of the stage that usable metrics covered. `dwell_s`: those that it is observed in any case.
    `weight`: percent on the canary.
    """
    if policy.max_wait_s is None or covered_s <= dwell_s + policy.max_wait_s:
        return ""
    waited = f"{lacks} after {covered_s:.0f} s with metrics, over {dwell_s + policy.max_wait_s:.0f} s "
    return f"{waited}(dwell and rollout.max_wait_s). {_advice(evidence, policy, weight, covered_s)}"


def _advice(evidence: LiveEvidence, policy: RolloutPolicy, weight: int, covered_s: float) -> str:
    canary, last = evidence.canary, "resume it to wait as long again, or abort it"
    if not canary.requests:
        return f"The canary got no request: look at the router and at what production asks. Then {last}."
    graded = canary.graded / canary.requests
    if not policy.gradable:
        wanted, seen, what = wanted_requests(evidence, policy, weight), canary.requests, "requests"
    else:
        wanted, seen, what = wanted_graded(evidence, policy, weight), canary.graded, "graded answers"
    if seen >= wanted:
        return f"Look at what holds it up, {last}."
    rest_s = (wanted - seen) * covered_s / seen if seen else math.inf
    at = f"At this rate {wanted - seen:,.0f} more {what} take {rest_s / DAY_S:,.1f} days"
    rate = at if seen else "None comes"
    if policy.gradable and graded < LEAST_GRADED:
        ways = f"{graded:.0%} of the canary's answers are graded: give references, a judge, or collect more feedback"
        if policy.by_feedback:
            ways += ", in a stage with a larger share of the requests or with a wider rollout.max_quality_drop"
    else:
        ways = "requests are few: give the stage a larger share of them (rollout.weights)"
    return f"{rate}, and {ways}; or {last}."
