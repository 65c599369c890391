"""How long a rollout will take: days of each stage, from what production did last week.

Clustering costs more the more often the same users come back, so a stage that lasts longer is not always surer: the
plan says how probably an equal canary passes. Where a stage takes too long it names a larger weight, never fewer
answers. It also says how many servers each weight takes, by what one carries and what carries production now.
Refuses to decide.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import NormalDist

import numpy as np

from pipeline.rollout.advance import LEVEL_Z, sample_size, wanted_requests
from pipeline.rollout.evidence import LiveEvidence, UnitCounts
from pipeline.rollout.policy import RolloutPolicy
from pipeline.rollout.servers import percent_of, servers_for
from pipeline.rollout.shares import MIN_USERS
from pipeline.storage import Record

DAY_S = 86_400.0
LARGER = 25
"""Percent that is proposed where a stage takes too long."""
LEAST_POWER = 0.7
"""Chance of an equal canary below which a stage is not worth its time."""


class Traffic(Record):
    """What production did in a while, by whom."""

    requests_per_day: float
    users: float
    """Distinct ones in that while."""
    graded_share: float
    """Graded answers of all requests."""
    quality: float
    """Share of right answers; never 0 or 1."""
    icc: float
    """Correlation of two answers to the same user, being right."""
    concentration: float
    """Chance that two requests are of the same user: 1 / users where all ask alike."""
    busiest_per_s: float = 0.0
    """Requests a second of the busiest hour; 0: not known."""


class StagePlan(Record):
    """One stage as it will go, if next week is as last week was."""

    weight: int
    """Percent on the canary in force."""
    graded: int
    """Graded canary answers that the advance test takes, with what the clustering costs; 0: none can be graded."""
    requests: float
    """Of both arms, until the sample is complete; infinite where nothing comes."""
    users: float
    """In the smaller arm."""
    days: float
    """Until the stage can end: its dwell, or its sample where that takes longer."""
    power: float | None
    """Chance that an equal canary passes; None where quality is not judged."""
    servers: int | None = None
    """Of the canary's slot that the weight takes; None where neither the champion's nor what one carries is known."""
    hints: tuple[str, ...] = ()


class RolloutPlan(Record):
    """All stages."""

    stages: tuple[StagePlan, ...]

    @property
    def days(self) -> float:
        return sum(stage.days for stage in self.stages)

    def lines(self) -> list[str]:
        """For a person."""
        lines = ["weight  graded answers    requests    users      days  servers  an equal canary passes"]
        for stage in self.stages:
            passes = "not judged" if stage.power is None else f"{stage.power:.0%}"
            graded = f"{stage.graded:,}" if stage.graded else "none"
            seen = f"{stage.requests:>10,.0f}  {stage.users:>7,.0f}  {stage.days:>8,.1f}"
            servers = "?" if stage.servers is None else f"{stage.servers}"
            lines.append(f"{stage.weight:>5}%  {graded:>14}  {seen}  {servers:>7}  {passes}")
            lines += [f"        {hint}" for hint in stage.hints]
        lines.append(f"in all {self.days:,.1f} days")
        if any(stage.servers is None for stage in self.stages):
            lines.append(
                "servers: as many of the champion's as the weight says, the last stage all; set "
                "rollout.requests_per_server, or let the router answer, for a number."
            )
        return lines


def traffic_of(units: Iterable[UnitCounts], days: float, busiest_per_s: float = 0.0) -> Traffic:
    """What these users did, one entry each, in so many days. Raises ValueError without requests."""
    rows = np.array([(u.requests, u.graded, u.correct) for u in units if u.requests > 0], dtype=np.float64).reshape(
        -1, 3
    )
    if not len(rows) or days <= 0:
        raise ValueError(f"{len(rows)} users in {days:g} days are no traffic to plan with. Give the rows of last week.")
    requests, graded, correct = rows.T
    answers = graded.sum()
    quality = (correct.sum() + 1) / (answers + 2)
    repeats = (graded * (graded - 1)).sum()
    residual = ((correct - quality * graded) ** 2).sum() / (quality * (1 - quality)) - answers
    again = (requests * np.maximum(requests - 1, 0)).sum() / max(1.0, requests.sum() * (requests.sum() - 1))
    return Traffic(
        requests_per_day=float(requests.sum() / days),
        users=len(rows),
        graded_share=float(answers / requests.sum()),
        quality=float(quality),
        icc=float(min(1.0, max(0.0, residual / repeats))) if repeats > 0 else 0.0,
        concentration=float(again),
        busiest_per_s=busiest_per_s,
    )


def plan(policy: RolloutPolicy, traffic: Traffic, max_stage_s: float, champion_servers: int = 0) -> RolloutPlan:
    """The stages of a rollout by this policy. `max_stage_s`: seconds that a stage should take at most.
    `champion_servers`: those that carry production now; 0 where that is not known."""
    stages = (
        _stage(policy, traffic, policy.weight_at(number), dwell, max_stage_s).model_copy(
            update={"servers": _servers(policy, traffic, policy.weight_at(number), champion_servers)}
        )
        for number, dwell in enumerate(policy.dwell_s)
    )
    return RolloutPlan(stages=tuple(stages))


def _servers(policy: RolloutPolicy, traffic: Traffic, weight: int, champion_servers: int) -> int | None:
    by_load = policy.requests_per_server is not None and traffic.busiest_per_s > 0
    if not champion_servers and not by_load:
        return None
    percent = percent_of(policy, weight)
    return servers_for(percent, champion_servers, traffic.busiest_per_s, policy.requests_per_server)


def _stage(policy: RolloutPolicy, traffic: Traffic, weight: int, dwell_s: float, max_stage_s: float) -> StagePlan:
    graded = _graded(policy, traffic, weight)
    days = _days(policy, traffic, weight)
    power = _power(policy, traffic, weight, graded) if policy.gradable else None
    users = traffic.users * min(weight, 100 - weight) / 100 if policy.unit == "user" else 0.0
    stage = StagePlan(
        weight=weight,
        graded=graded,
        requests=days * traffic.requests_per_day,
        users=users,
        days=max(days, dwell_s / DAY_S),
        power=power,
    )
    hints = (*_hints(policy, traffic, stage, max_stage_s), *_held(policy, days, dwell_s))
    return stage.model_copy(update={"hints": hints})


def _graded(policy: RolloutPolicy, traffic: Traffic, weight: int) -> int:
    if not policy.gradable:
        return 0
    if policy.min_canary_requests != "auto":
        return policy.min_canary_requests
    independent = sample_size(traffic.quality, policy.max_quality_drop, weight)
    if independent == math.inf:
        raise ValueError(
            f"rollout.max_quality_drop is {policy.max_quality_drop:g}: no number of answers is enough. Set it above 0."
        )
    return math.ceil(independent * (1 + _clustering(policy, traffic, weight) * independent))


def _clustering(policy: RolloutPolicy, traffic: Traffic, weight: int) -> float:
    """What each further answer adds to the design effect: correlation times the chance of a user who comes back."""
    return traffic.icc * traffic.concentration / (weight / 100) if policy.unit == "user" else 0.0


def _days(policy: RolloutPolicy, traffic: Traffic, weight: int) -> float:
    """Until the sample is complete."""
    if policy.gradable:
        wanted, share = _graded(policy, traffic, weight), traffic.graded_share
    else:
        wanted, share = wanted_requests(LiveEvidence(), policy, weight), 1.0
    a_day = traffic.requests_per_day * share * weight / 100
    return wanted / a_day if a_day > 0 else math.inf


def _power(policy: RolloutPolicy, traffic: Traffic, weight: int, graded: int) -> float:
    spread = traffic.quality * (1 - traffic.quality) / (1 - weight / 100)
    error = math.sqrt(spread * (1 / max(graded, 1) + _clustering(policy, traffic, weight)))
    return NormalDist().cdf(policy.max_quality_drop / error - LEVEL_Z)


def _hints(policy: RolloutPolicy, traffic: Traffic, stage: StagePlan, max_stage_s: float) -> Iterable[str]:
    weight, users, power, days = stage.weight, stage.users, stage.power, _days(policy, traffic, stage.weight)
    smaller, holdback = min(weight, 100 - weight), weight > 50
    other = 100 - LARGER if holdback else LARGER
    where = f"a holdback of {LARGER}%" if holdback else f"{LARGER}%"
    if policy.gradable and not traffic.graded_share:
        yield "nothing was graded last week: give references, a judge, or collect feedback, or roll out without grades."
        return
    if policy.gradable and policy.unit == "user" and users < MIN_USERS:
        least = math.ceil(100 * MIN_USERS / traffic.users)
        what = f"a holdback of {least}%" if holdback else f"{least}%"
        advice = f"take {what} or more" if least <= 50 else f"{traffic.users:.0f} users are too few for two arms"
        yield f"{users:.0f} users in the smaller arm: harm of quality takes {MIN_USERS}, so {advice}."
    if days * DAY_S > max_stage_s:
        way = f"{where} takes {_days(policy, traffic, other):,.1f} days" if smaller < LARGER else "allow more"
        yield f"longer than {max_stage_s / DAY_S:,.0f} days (rollout.max_stage_s): {way}."
    if power is not None and power < LEAST_POWER:
        why = "the sample is small" if policy.min_canary_requests != "auto" else "its users are few or too much alike"
        rate = _power(policy, traffic, other, _graded(policy, traffic, other))
        at = f" With {where} {rate:.0%}." if smaller < LARGER else ""
        yield f"an equal canary passes {power:.0%} of the time, because {why}.{at}"


def _held(policy: RolloutPolicy, days: float, dwell_s: float) -> Iterable[str]:
    if policy.max_wait_s is not None and days * DAY_S > dwell_s + policy.max_wait_s:
        after = (dwell_s + policy.max_wait_s) / DAY_S
        yield f"held after {after:,.1f} days without its sample (rollout.max_wait_s): a person resumes or aborts it."
