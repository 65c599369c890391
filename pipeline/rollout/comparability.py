"""Whether the arms of a stage can be compared: shares of traffic and of grades, tested at every look by distinct users
where the router is sticky; and what a rollout cannot see at all."""

from pipeline.rollout.evidence import MIN_GRADED, LiveEvidence, LiveMetrics
from pipeline.rollout.policy import RolloutPolicy
from pipeline.rollout.shares import MIN_TIMED, MIN_USERS, Ratio, design_effect, enough, proven, variance

SHARE_ALPHA = 0.001
"""Level at which an observed share contradicts the intended one, over all looks of a stage."""
SHARE_SCALE = 0.02
COVERAGE_SCALE = 0.05
"""Effects that the sequences are sharpest for."""
GRADES_A_REQUEST = 1.5
"""Graded answers to a request above which they can't be of the same requests, where two systems count them: both count
the same windows, but a request is counted when it ends, and its trace from when it began."""


def unusable(look: LiveMetrics | None, watched_until: float, now: float, policy: RolloutPolicy) -> str:
    """Why a look carries no evidence, or "". Windows must follow each other, or requests would count twice. Judges the
    structure alone: a look at which nothing was graded or answered counts, and may be harm."""
    if look is None:
        return "no metrics"
    for name, arm in (("champion", look.champion), ("canary", look.canary)):
        if any((key == "") != (policy.unit == "request") for key in arm.units):
            return f"{name} counts are not by {policy.unit}, which is what the router randomises"
        sums = arm.sum()
        if sums.requests > sums.errors and arm.latencies.total <= 0:
            return f"{name} latencies are missing for {sums.requests:.0f} requests"
    if not (look.window_start <= look.window_end < float("inf")) or look.window_end > now:
        return f"window {look.window_start} to {look.window_end} is empty or lies in the future of {now}"
    if not look.graded_until <= look.window_end:
        return f"grades until {look.graded_until} lie after the window's end {look.window_end}"
    if now - look.window_end > policy.max_metrics_age_s:
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
    if total <= 0:
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
    alike *= max(design_effect(champion, policy.unit), design_effect(canary, policy.unit))
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
    users = min(evidence.champion.users, evidence.canary.users)
    if policy.gradable and seen and policy.unit == "user" and users < MIN_USERS:
        spots.append(
            f"quality: {users:.0f} users in the smaller arm, {MIN_USERS} needed to prove harm. Give the stage a larger "
            "weight"
        )
    if seen and evidence.slow_over_s is None:
        spots.append(
            f"latency: the champion's p99 takes {MIN_TIMED} of its requests, and a histogram that reaches it. Wait for "
            "them, or add a higher bucket"
        )
    return tuple(spots)
