"""What a look proves against the canary. Availability comes first and without blame; quality, errors and latency get a
third of alpha each, so a harmless canary is rolled back during a stage with a probability below alpha."""

from collections.abc import Callable
from typing import Literal

from pipeline.core.storage import Record
from pipeline.rollout.evidence import MIN_GRADED, LiveEvidence
from pipeline.rollout.policy import RolloutPolicy
from pipeline.rollout.shares import P99, enough, proven, variance

MIN_SILENT = 30
"""Requests to the canary, none of them answered, after which it is taken to be down."""
UNREADY_LOOKS = 2
"""Looks in a row with no replica ready, likewise."""
MIN_ERRORS = 10
"""Canary errors (or slow requests) below which a rate is an anecdote."""
QUALITY_SCALE = 0.1
ERROR_SCALE = 0.03
SLOW_SCALE = 0.02
"""Effects (as shares) that each sequence is sharpest for; any value keeps the false-alarm rate."""


Proves = Callable[[float, float, float], bool]
"""Whether an excess with this variance is over 0, and the scale that a sequence is sharpest for: at any look for harm,
once for the advance test."""


class Harm(Record):
    """Why the canary has to go, now."""

    kind: Literal["unavailable", "errors", "quality", "latency"]
    reason: str
    quarantine: bool = True
    """Whether it is the model's fault, so that its digest is never rolled out again."""


def harm(evidence: LiveEvidence, policy: RolloutPolicy, unready_looks: int = 0) -> Harm | None:
    """What the evidence proves against the canary. Valid at every look, also one that saw nothing usable.
    `unready_looks`: looks in a row, up to now, at which no replica of the canary was ready."""
    if reason := _unavailable(evidence, unready_looks):
        return Harm(kind="unavailable", reason=reason, quarantine=False)

    def proves(excess: float, spread: float, scale: float) -> bool:
        return proven(excess, spread, policy.alpha / 3, scale)

    if reason := more_errors(evidence, policy, proves):
        return Harm(kind="errors", reason=reason)
    if reason := _quality(evidence, policy, proves):
        return Harm(kind="quality", reason=reason)
    if reason := slower(evidence, policy, proves):
        return Harm(kind="latency", reason=reason)
    return None


def quality_drop(evidence: LiveEvidence) -> float:
    """Champion's share of right answers minus the canary's; needs graded answers in both arms."""
    return evidence.champion.quality.share - evidence.canary.quality.share


def _unavailable(evidence: LiveEvidence, unready_looks: int) -> str:
    if evidence.silent >= MIN_SILENT:
        return f"the canary answered none of its last {evidence.silent:.0f} requests"
    if unready_looks >= UNREADY_LOOKS:
        return f"no replica of the canary was ready for {unready_looks} looks"
    return ""


def _quality(evidence: LiveEvidence, policy: RolloutPolicy, proves: Proves) -> str:
    arms = evidence.champion.quality, evidence.canary.quality
    if not policy.gradable or not all(enough(arm, policy.unit, MIN_GRADED) for arm in arms):
        return ""
    drop = quality_drop(evidence)
    if not proves(drop - policy.max_quality_drop, evidence.quality_variance(policy.unit), QUALITY_SCALE):
        return ""
    return f"quality fell by {drop:.3f}, proven to be over {policy.max_quality_drop:g}"


def more_errors(evidence: LiveEvidence, policy: RolloutPolicy, proves: Proves) -> str:
    """That the canary's errors are over the limit times the champion's, or ""."""
    canary, champion, limit = evidence.canary.errors, evidence.champion.errors, policy.max_error_rate_ratio
    if canary.hits < MIN_ERRORS or min(canary.trials, champion.trials) < MIN_GRADED:
        return ""
    spread = variance(canary, policy.unit) + limit**2 * variance(champion, policy.unit)
    if not proves(canary.share - limit * champion.share, spread, ERROR_SCALE):
        return ""
    return f"errors went from {champion.share:.4f} to {canary.share:.4f}, proven to be over {limit:g} times"


def slower(evidence: LiveEvidence, policy: RolloutPolicy, proves: Proves) -> str:
    """That requests over the frozen threshold are too many of the canary's, or "". Both: more than 1% are, and more
    than of the champion's, whom a busy hour slows too."""
    canary, champion = evidence.canary.slow, evidence.champion.slow
    if canary.hits < MIN_ERRORS or champion.trials <= 0:
        return ""
    own, other = variance(canary, policy.unit), variance(champion, policy.unit)
    if not (
        proves(canary.share - (1 - P99), own, SLOW_SCALE)
        and proves(canary.share - champion.share, own + other, SLOW_SCALE)
    ):
        return ""
    return (
        f"{canary.share:.1%} of the canary's requests took over {evidence.slow_over_s:.3g} s, proven to be over 1%: "
        f"p99 latency is over {policy.max_p99_latency_ratio:g} times the champion's"
    )
