"""The rules of a stage, as functions of its sums. At every look: harm, where availability comes first and without
blame, and quality, errors and latency get a third of alpha each, so a harmless canary is rolled back with a probability
below alpha; and whether the arms can be compared. After the dwell: whether all stages prove no loss, at 5% in all."""

import math
from collections.abc import Callable
from typing import Literal

from pipeline.core.storage import Record
from pipeline.rollout.evidence import MIN_GRADED, LiveEvidence, LiveMetrics
from pipeline.rollout.policy import RolloutPolicy
from pipeline.rollout.shares import LEVEL_Z, MIN_TIMED, MIN_USERS, P99, Ratio, enough, proven, radius, variance

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
    return _over_a_limit(
        evidence, policy, lambda excess, spread, scale: proven(excess, spread, policy.alpha / 3, scale)
    )


def _over_a_limit(evidence: LiveEvidence, policy: RolloutPolicy, proves: Proves) -> Harm | None:
    if reason := more_errors(evidence, policy, proves):
        return Harm(kind="errors", reason=reason)
    if reason := _worse_quality(evidence, policy, proves):
        return Harm(kind="quality", reason=reason)
    if reason := slower(evidence, policy, proves):
        return Harm(kind="latency", reason=reason)
    return None


def _unavailable(evidence: LiveEvidence, unready_looks: int) -> str:
    if evidence.silent >= MIN_SILENT:
        return f"the canary answered none of its last {evidence.silent:.0f} requests"
    if unready_looks >= UNREADY_LOOKS:
        return f"no replica of the canary was ready for {unready_looks} looks"
    return ""


def _worse_quality(evidence: LiveEvidence, policy: RolloutPolicy, proves: Proves) -> str:
    arms = evidence.champion.quality, evidence.canary.quality
    if not policy.gradable or not all(enough(arm, policy.unit, MIN_GRADED) for arm in arms):
        return ""
    drop = arms[0].share - arms[1].share
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
    if canary.hits < MIN_ERRORS or not champion.trials:
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


SHARE_ALPHA = 0.001
"""Level at which an observed share contradicts the intended one, over all looks of a stage."""
SHARE_SCALE = 0.02
COVERAGE_SCALE = 0.05
"""Effects that the sequences are sharpest for."""
GRADES_A_REQUEST = 1.5
"""Graded answers to a request above which they can't be of the same requests, where two systems count them: both count
the same windows, but a request is counted when it ends, and its trace from when it began."""


MAX_METRICS_AGE_S = 300.0


def unusable(look: LiveMetrics | None, watched_until: float, now: float) -> str:
    """Why a look carries no evidence, or "". Windows must follow each other, or requests would count twice. Judges the
    structure alone: a look at which nothing was graded or answered counts, and may be harm."""
    if look is None:
        return "no metrics"
    if not look.window_start <= look.window_end <= now:
        return f"window {look.window_start} to {look.window_end} is empty or lies in the future of {now}"
    if not look.graded_until <= look.window_end:
        return f"grades until {look.graded_until} lie after the window's end {look.window_end}"
    if now - look.window_end > MAX_METRICS_AGE_S:
        return f"metrics are {now - look.window_end:.0f} s old"
    if look.window_start < watched_until:
        return f"window starts at {look.window_start}, inside what was counted up to {watched_until}"
    return ""


def judged_until(look: LiveMetrics, policy: RolloutPolicy) -> float:
    """Until when a look counts towards the dwell: the earlier of its two watermarks, where anything is graded."""
    return min(look.window_end, look.graded_until) if policy.gradable else look.window_end


def comparability_problem(evidence: LiveEvidence, weight: int, policy: RolloutPolicy) -> str:
    """Why the arms can't be compared, or "". Valid at every look. `weight`: percent on the canary in force."""
    for name, arm in (("champion", evidence.champion), ("canary", evidence.canary)):
        most = GRADES_A_REQUEST * max(arm.requests, MIN_GRADED) if policy.unit == "request" else arm.requests
        if arm.graded > most:
            return f"{name} has {arm.graded:.0f} graded answers to {arm.requests:.0f} requests"
    if evidence.both > evidence.both_at_resume:
        return f"{evidence.both - evidence.both_at_resume:.0f} users were served by both arms: the router is not sticky"
    return _share(evidence, weight, policy) or _coverage(evidence, policy)


def _share(evidence: LiveEvidence, weight: int, policy: RolloutPolicy) -> str:
    what = "users" if policy.unit == "user" else "requests"
    champion, canary = (
        getattr(arm, what) - getattr(before, what)
        for arm, before in zip((evidence.champion, evidence.canary), evidence.at_resume, strict=True)
    )
    total, intended = champion + canary, weight / 100
    if not total:
        return ""
    off, spread = abs(canary / total - intended), intended * (1 - intended) / total
    contradicted = off > 0 if spread == 0 else proven(off, spread, SHARE_ALPHA / 2, SHARE_SCALE)
    return f"the canary got {canary:.0f} of {total:.0f} {what} at {weight}%" if contradicted else ""


def _coverage(evidence: LiveEvidence, policy: RolloutPolicy) -> str:
    arms = zip((evidence.champion, evidence.canary), evidence.at_resume, strict=True)
    champion, canary = (arm.coverage.minus(before.coverage) for arm, before in arms)
    if not policy.gradable or not _differ(champion, canary, policy):
        return ""
    how = "rated by users" if policy.by_feedback else "graded"
    return f"{canary.share:.1%} of the canary's answers are {how} and {champion.share:.1%} of the champion's"


def _differ(champion: Ratio, canary: Ratio, policy: RolloutPolicy) -> bool:
    if not all(enough(arm, policy.unit, MIN_GRADED) for arm in (champion, canary)):
        return False
    apart = variance(champion, policy.unit) + variance(canary, policy.unit)
    share = (champion.hits + canary.hits + 1) / (champion.trials + canary.trials + 2)
    alike = share * (1 - share) * (1 / champion.trials + 1 / canary.trials)
    alike *= max(variance(arm, policy.unit) / variance(arm, "request") for arm in (champion, canary))
    spread = max(apart, alike)  # `alike`: an arm of which nothing is missing yet is not that certain
    return proven(abs(champion.share - canary.share), spread, SHARE_ALPHA / 2, COVERAGE_SCALE)


def blind_spots(evidence: LiveEvidence, policy: RolloutPolicy) -> tuple[str, ...]:
    """What this stage cannot see so far, each with what would help. Before the first request: what it never will."""
    spots: list[str] = []
    seen = evidence.champion.requests + evidence.canary.requests > 0
    if not policy.gradable:
        spots.append("quality: nothing here can be graded. Give references, a judge, or collect feedback")
    if policy.by_feedback:
        spots.append(
            "quality: only users grade, and what those think who say nothing is not seen. Give references, or a judge"
        )
    if policy.gradable and seen and (few := _few_users(evidence, policy)):
        spots.append(few)
    if seen and evidence.slow_over_s is None:
        spots.append(
            f"latency: the champion's p99 takes {MIN_TIMED} of its requests, and a histogram that reaches it. Wait for "
            "them, or add a higher bucket"
        )
    return tuple(spots)


def _few_users(evidence: LiveEvidence, policy: RolloutPolicy) -> str:
    users = min(evidence.champion.quality.units, evidence.canary.quality.units)
    if policy.unit == "request" or users >= MIN_USERS:
        return ""
    return f"quality: {users:.0f} users with grades in the smaller arm, {MIN_USERS} needed. Give it a larger weight"


ERROR_RATE = 0.01
"""The champion's error rate that a rollout without grades is planned for, where it has fewer errors."""
POWER_Z = 2.486
"""1.645 + 0.841: a one-sided test at 5% that finds its effect four times in five."""
ADVANCE_ALPHA = 0.05
"""Chance that a canary which is worse by the margin is ever proven to be no worse, over all looks and stages."""
SURE_Z = 4.1
"""Margin over standard error by which an equal canary is proven to be no worse with a chance of .95, over all looks."""


def wanted_graded(evidence: LiveEvidence, policy: RolloutPolicy, weight: int) -> int:
    """Graded canary answers of the stage by which an equal canary passes with a chance of .95, as far as is known; 0
    where none can be graded. Half of all equal canaries pass by a third of them."""
    if not policy.gradable:
        return 0
    pooled, before = evidence.pooled(policy.unit), evidence.earlier.weight
    spread = pooled.squares / pooled.weight if pooled.weight else math.inf
    each = (spread if math.isfinite(spread) else 0.25) / policy.max_quality_drop**2
    missing = max(SURE_Z**2 * each - before, each * (policy.min_canary_requests == "auto"))
    return max(_least_graded(policy), math.ceil(missing / (1 - weight / 100)))


def _least_graded(policy: RolloutPolicy) -> int:
    return MIN_GRADED if policy.min_canary_requests == "auto" else max(policy.min_canary_requests, MIN_GRADED)


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


def unproven(evidence: LiveEvidence, policy: RolloutPolicy, weight: int) -> str:
    """Why the weight may not rise after the dwell, with what was seen, or "". Valid at every look: a stage gathers more
    until it is proven, or a person is asked (`stage_timeout`)."""
    for what, seen, wanted in (
        ("graded canary answers", evidence.canary.graded, _least_graded(policy) * policy.gradable),
        ("canary requests", evidence.canary.requests, wanted_requests(evidence, policy, weight)),
        ("graded champion answers", evidence.champion.graded, MIN_GRADED * policy.gradable),
        ("champion requests", evidence.champion.requests, MIN_GRADED),
    ):
        if seen < wanted:
            return f"{seen:.0f} of {wanted} {what}"
    # No stage before makes up for what this one shows alone.
    over = _over_a_limit(evidence, policy, lambda excess, spread, _: excess > LEVEL_Z * math.sqrt(spread))
    return over.reason if over else _unproven_quality(evidence, policy) if policy.gradable else ""


def _unproven_quality(evidence: LiveEvidence, policy: RolloutPolicy) -> str:
    margin, pooled, own = policy.max_quality_drop, evidence.pooled(policy.unit), evidence.quality_variance(policy.unit)
    fall, within = pooled.total / pooled.weight, radius(pooled.squares / pooled.weight**2, ADVANCE_ALPHA, margin)
    if few := _few_users(evidence, policy):
        return few
    if policy.min_canary_requests == "auto" and own > margin**2:
        return f"this stage's own answers tell the fall of quality to {math.sqrt(own):.3f}, {margin:g} needed"
    if fall + within < margin:
        return ""
    graded = f"{evidence.canary.graded:.0f} graded canary answers"
    return f"quality fell by {fall:.3f} +- {within:.3f}: not proven to be less than {margin:g} with {graded}"


def stage_timeout(lacks: str, evidence: LiveEvidence, policy: RolloutPolicy, covered_s: float, dwell_s: float) -> str:
    """Why a stage that still lacks something is not to wait on, with what may help; "" while it may. `covered_s`:
    seconds of the stage that usable metrics covered. `dwell_s`: those that it is observed in any case."""
    if policy.max_wait_s is None or covered_s <= dwell_s + policy.max_wait_s:
        return ""
    graded = f", {evidence.canary.graded:.0f} of its answers have a grade" if policy.gradable else ""
    return (
        f"{lacks} after {covered_s:.0f} s with metrics, over {dwell_s + policy.max_wait_s:.0f} s (dwell and "
        f"rollout.max_wait_s). The canary got {evidence.canary.requests:.0f} requests{graded}. Give it a larger share "
        "(rollout.weights) or more grades (references, judge, feedback); resume it to wait as long again, or abort it."
    )
