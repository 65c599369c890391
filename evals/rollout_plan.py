"""How long a rollout as written takes with so much traffic, and which policy would end it in time. Answers are taken to
be independent, all of them graded and half of them right, which is the least certain; users who come back take more."""

import json
from collections.abc import Iterator
from typing import NamedTuple

from pipeline.rollout.evidence import LiveEvidence, PooledDrop
from pipeline.rollout.policy import RolloutPolicy
from pipeline.rollout.rules import wanted_graded, wanted_requests
from pipeline.views.rollout import spell

DAY_S = 86_400.0
OTHERS = ((25, 100), (50, 100))  # weights to propose, the most careful first


class StagePlan(NamedTuple):
    weight: int
    answers: int
    """Of the canary, by which 19 of 20 equal canaries pass; requests, where nothing can be graded."""
    seconds: float
    in_time: bool
    """Whether no person is asked before; within 30 days after the dwell, where the recipe sets no end."""


def stage_plans(policy: RolloutPolicy, requests_a_day: float) -> list[StagePlan]:
    """Each with what the stages before have shown when they end."""
    plans, before, most = list[StagePlan](), 0.0, policy.max_wait_s or 30 * DAY_S
    for weight, dwell_s in zip(policy.canary_weights, policy.dwell_s, strict=True):
        seen, share = LiveEvidence(earlier=PooledDrop(weight=before, squares=before / 4)), weight / 100
        answers = wanted_graded(seen, policy, weight) or wanted_requests(seen, policy, weight)
        seconds = max(dwell_s, answers / share / requests_a_day * DAY_S)
        plans.append(StagePlan(weight, answers, seconds, seconds <= dwell_s + most))
        before += requests_a_day * seconds / DAY_S * share * (1 - share)
    return plans


def policy_in_time(policy: RolloutPolicy, requests_a_day: float) -> RolloutPolicy:
    """The policy, or the nearest one of which no stage of an equal canary ends with a person who is asked."""
    changes: list[dict[str, object]] = [{"weights": each, "dwell_s": policy.dwell_s[-len(each) :]} for each in OTHERS]
    margins = (round(policy.max_quality_drop + points / 100, 2) for points in range(1, 50))
    changes += [{**changes[-1], "max_quality_drop": margin} for margin in margins]
    choices = [policy, *(policy.model_copy(update={**change, "min_canary_requests": "auto"}) for change in changes)]
    in_time = (each for each in choices if all(plan.in_time for plan in stage_plans(each, requests_a_day)))
    return next(in_time, choices[-1])


def plan_lines(policy: RolloutPolicy, requests_a_day: float | None) -> Iterator[str]:
    """What `pt validate` says of it. None: the traffic is not known."""
    points, what = f"{100 * policy.max_quality_drop:g} points", "graded canary answers"
    shows, what = (f"that no canary is worse by {points}", what) if policy.gradable else ("no quality", "requests")
    yield f"rollout: shows {shows}; {spell(sum(policy.dwell_s))} at least"
    for plan in (plans := stage_plans(policy, requests_a_day or 1e9)):
        time = f" in {spell(plan.seconds)}" if requests_a_day else ""
        yield f"rollout at {plan.weight}%: 19 of 20 equal canaries pass by {plan.answers:,} {what}{time}"
    if not requests_a_day:
        return
    time = f"{spell(sum(plan.seconds for plan in plans))} with {requests_a_day:,.0f} requests a day"
    if (other := policy_in_time(policy, requests_a_day)) is policy:
        yield f"rollout: {time}"
        return
    sooner = spell(sum(plan.seconds for plan in stage_plans(other, requests_a_day)))
    names = ("weights", "dwell_s", "min_canary_requests", "max_quality_drop")
    changed = [f"rollout.{n}={json.dumps(getattr(other, n))}" for n in names if getattr(other, n) != getattr(policy, n)]
    yield f"rollout: warning: {time}; a person is asked before. It takes {sooner} with {' '.join(changed)}"
