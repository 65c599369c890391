"""When traffic may move: the stages of a rollout, what counts as evidence, and what counts as harm.

Harm rules hold at every look, however often one looks: each is a one-sided normal-mixture confidence sequence
(asymptotic, arXiv 2103.06476), so the chance that a harmless canary is ever rolled back during a stage stays below
alpha, split evenly over quality, errors and latency. Departures: variances are smoothed by one success and one
failure, and latency bets on the sign of each look's p99 ratio, because a p99 has no usable standard error.
Refuses to know where metrics come from and to write anything down.
"""

from __future__ import annotations

import math
from itertools import pairwise

from pipeline.recipe import Rollout
from pipeline.storage import Record

MIN_GRADED = 30
"""Graded requests in each arm below which the normal approximation is not to be trusted."""
MIN_ERRORS = 10
"""Canary errors below which an error rate is an anecdote."""
QUALITY_SCALE = 0.1
ERROR_SCALE = 0.03
SHARE_SCALE = 0.02
"""Effects (as shares) that each sequence is sharpest for; any value keeps the false-alarm rate."""
SHARE_ALPHA = 0.001
"""Level at which an observed traffic share contradicts the intended one."""
LATENCY_BETS = (0.25, 0.5, 0.75, 0.95)


class RolloutPolicy(Record):
    """The rule of one rollout, frozen into its record when it is proposed."""

    weights: tuple[int, ...]
    dwell_s: tuple[float, ...]
    min_canary_requests: int
    max_quality_drop: float
    max_error_rate_ratio: float
    max_p99_latency_ratio: float
    alpha: float
    max_metrics_age_s: float


def policy_of(section: Rollout, max_metrics_age_s: float = 300.0) -> RolloutPolicy:
    """The policy that a recipe's section spells. Raises ValueError when its stages do not lead to 100%."""
    weights, dwell = section.weights, section.dwell_s
    rising = all(a < b for a, b in pairwise(weights))
    if len(weights) < 2 or not rising or weights[-1] != 100:
        raise ValueError(f"rollout.weights is {weights}. Give two or more rising percentages that end in 100.")
    if len(dwell) != len(weights) or not all(0 <= d < math.inf for d in dwell):
        raise ValueError(f"rollout.dwell_s is {dwell}. Give one time in seconds for each of the weights {weights}.")
    if not 0 < section.alpha < 1:
        raise ValueError(f"rollout.alpha is {section.alpha}. Give a level between 0 and 1, such as 0.05.")
    return RolloutPolicy(
        weights=weights,
        dwell_s=dwell,
        min_canary_requests=section.min_canary_requests,
        max_quality_drop=section.max_quality_drop,
        max_error_rate_ratio=section.max_error_rate_ratio,
        max_p99_latency_ratio=section.max_p99_latency_ratio,
        alpha=section.alpha,
        max_metrics_age_s=max_metrics_age_s,
    )


class Counts(Record):
    """Requests of one arm. Counts are floats because a metrics server may answer NaN."""

    requests: float = 0
    graded: float = 0
    """Requests whose answer could be graded; quality is `correct / graded`."""
    correct: float = 0
    errors: float = 0
    """Requests that got no answer; the error rate is `errors / requests`."""

    def plus(self, other: Counts) -> Counts:
        return Counts(
            requests=self.requests + other.requests,
            graded=self.graded + other.graded,
            correct=self.correct + other.correct,
            errors=self.errors + other.errors,
        )


class ArmMetrics(Counts):
    """One arm's requests within one window; latencies in seconds, None without requests."""

    latency_p50_s: float | None = None
    latency_p99_s: float | None = None


class LiveMetrics(Record):
    """What both arms did between two moments (seconds since the epoch)."""

    champion: ArmMetrics
    canary: ArmMetrics
    window_start: float
    window_end: float


class LiveEvidence(Record):
    """What the looks of one stage add up to."""

    champion: Counts = Counts()
    canary: Counts = Counts()
    slow: int = 0
    """Looks in which the canary's p99 latency was over the limit."""
    brisk: int = 0
    reference: Counts = Counts()
    """The champion in the last stage that gave it traffic: the comparison at 100%."""
    champion_p99_s: float | None = None
    """The champion's p99 latency when it was last seen."""
    unshared: tuple[float, float] = (0.0, 0.0)
    """Requests of champion and canary before a person resumed the stage: their share held it, and is settled."""

    def baseline(self) -> Counts:
        return self.champion if self.champion.requests else self.reference

    def fresh(self) -> LiveEvidence:
        """Where the next stage starts from."""
        return LiveEvidence(reference=self.baseline(), champion_p99_s=self.champion_p99_s)

    def resumed(self) -> LiveEvidence:
        """Where a stage that was held goes on: harm goes on being proven, the share of the traffic is seen anew."""
        return self.model_copy(update={"unshared": (self.champion.requests, self.canary.requests)})

    def plus(self, look: LiveMetrics, policy: RolloutPolicy) -> LiveEvidence:
        champion_p99 = look.champion.latency_p99_s or self.champion_p99_s
        ratio = (look.canary.latency_p99_s or 0.0) / champion_p99 if champion_p99 else None
        slow = ratio is not None and ratio > policy.max_p99_latency_ratio
        return LiveEvidence(
            champion=self.champion.plus(look.champion),
            canary=self.canary.plus(look.canary),
            slow=self.slow + slow,
            brisk=self.brisk + (ratio is not None and not slow),
            reference=self.reference,
            champion_p99_s=champion_p99,
            unshared=self.unshared,
        )


def unusable(look: LiveMetrics | None, watched_until: float, now: float, policy: RolloutPolicy) -> str:
    """Why a look carries no evidence, or "". Windows must follow each other, or requests would count twice."""
    if look is None:
        return "no metrics"
    for name, arm in (("champion", look.champion), ("canary", look.canary)):
        if not (0 <= arm.correct <= arm.graded <= arm.requests < math.inf and 0 <= arm.errors <= arm.requests):
            return f"{name} counts make no sense: {arm!r}"
        if arm.requests and not all(
            t is not None and 0 <= t < math.inf for t in (arm.latency_p50_s, arm.latency_p99_s)
        ):
            return f"{name} latency is missing: {arm!r}"
    if not (look.window_start <= look.window_end < math.inf) or look.window_end > now:
        return f"window {look.window_start} to {look.window_end} is empty or lies in the future of {now}"
    if now - look.window_end > policy.max_metrics_age_s:
        return f"metrics are {now - look.window_end:.0f} s old"
    if look.window_start < watched_until:
        return f"window starts at {look.window_start}, inside what was counted up to {watched_until}"
    return "" if look.canary.graded else "no graded canary requests"


def harm(evidence: LiveEvidence, policy: RolloutPolicy) -> str:
    """What the evidence proves against the canary, or "". Valid at every look."""
    canary, base, alpha = evidence.canary, evidence.baseline(), policy.alpha / 3
    if min(canary.graded, base.graded) >= MIN_GRADED:
        drop = quality_drop(evidence)
        variance = _variance(canary.correct, canary.graded) + _variance(base.correct, base.graded)
        if proven(drop - policy.max_quality_drop, variance, alpha, QUALITY_SCALE):
            return f"quality fell by {drop:.3f}, proven to be over {policy.max_quality_drop}"
    if canary.errors >= MIN_ERRORS and min(canary.requests, base.requests) >= MIN_GRADED:
        limit = policy.max_error_rate_ratio
        rates = canary.errors / canary.requests, base.errors / base.requests
        variance = _variance(canary.errors, canary.requests) + limit**2 * _variance(base.errors, base.requests)
        if proven(rates[0] - limit * rates[1], variance, alpha, ERROR_SCALE):
            return f"errors went from {rates[1]:.4f} to {rates[0]:.4f}, proven to be over {limit} times"
    if latency_evidence(evidence.slow, evidence.brisk) >= 1 / alpha and canary.requests >= policy.min_canary_requests:
        return f"p99 latency was over {policy.max_p99_latency_ratio} times the champion's in {_slow(evidence)}"
    return ""


def shortfall(evidence: LiveEvidence, policy: RolloutPolicy) -> str:
    """Why the advance test, taken once a stage when its dwell is over, fails; or "". Point estimates, no levels."""
    if evidence.baseline().graded < MIN_GRADED:
        return f"the champion has {evidence.baseline().graded:.0f} graded requests to compare with, {MIN_GRADED} needed"
    drop = quality_drop(evidence)
    if drop > policy.max_quality_drop:
        return f"quality fell by {drop:.3f}, over {policy.max_quality_drop}, though not proven"
    if evidence.slow > evidence.brisk:
        return f"p99 latency was over {policy.max_p99_latency_ratio} times the champion's in {_slow(evidence)}"
    return ""


def skew(evidence: LiveEvidence, weight: int) -> str:
    """How the observed traffic share contradicts the weight, or "". Two-sided, valid at every look."""
    champion, canary = (
        arm.requests - before
        for arm, before in zip((evidence.champion, evidence.canary), evidence.unshared, strict=True)
    )
    total, intended = canary + champion, weight / 100
    off = abs(canary / total - intended)
    variance = intended * (1 - intended) / total
    contradicted = off > 0 if variance == 0 else proven(off, variance, SHARE_ALPHA / 2, SHARE_SCALE)
    return f"the canary got {canary:.0f} of {total:.0f} requests at {weight}%" if contradicted else ""


def quality_drop(evidence: LiveEvidence) -> float:
    """Champion's share of correct answers minus the canary's; needs graded requests in both arms."""
    canary, base = evidence.canary, evidence.baseline()
    return base.correct / base.graded - canary.correct / canary.graded


def proven(excess: float, variance: float, alpha: float, scale: float) -> bool:
    """Whether a running estimate with this variance proves its mean to be above zero.

    Over all looks together it is wrong with probability at most `alpha`; sharpest for means of about `scale`.
    """
    ratio = scale**2 / variance
    return excess > math.sqrt(variance * 2 * (1 + 1 / ratio) * math.log(1 + math.sqrt(1 + ratio) / (2 * alpha)))


def latency_evidence(slow: int, brisk: int) -> float:
    """Wealth of a bettor on `slow` looks, fair if a look is slow half of the time: over 1/alpha at most alpha often."""
    return sum((1 + bet) ** slow * (1 - bet) ** brisk for bet in LATENCY_BETS) / len(LATENCY_BETS)


def _slow(evidence: LiveEvidence) -> str:
    return f"{evidence.slow} of {evidence.slow + evidence.brisk} looks"


def _variance(hits: float, trials: float) -> float:
    share = (hits + 1) / (trials + 2)
    return share * (1 - share) / trials
