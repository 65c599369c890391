"""The A/A test: how often the rules alarm when both arms are the same model, on last week's real users.

Before the first rollout of a deployment last week's requests are split by many salts at each weight, as the router will
split next week's, and watched look by look. No traffic is needed. A share of salts over alpha says that the rules don't
fit this traffic: its table says which. Refuses to read traces and to hold a rollout.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.rollout.doubt import doubt
from pipeline.rollout.evidence import LiveEvidence, arm_sums, fixed_basis
from pipeline.rollout.harm import harm
from pipeline.rollout.latency import Latencies, frozen_threshold
from pipeline.rollout.policy import RolloutPolicy
from pipeline.storage import Record

SALTS = 200
EDGE_RATIO = 1.05
"""Of the histogram that freezes the threshold."""
Array = NDArray[np.float64]


class ServedRequest(NamedTuple):
    """A request that production answered, or failed to."""

    unit: str
    """Who asked."""
    at: float
    """Seconds since 1970."""
    latency_s: float
    failed: bool = False
    grade: Literal["right", "wrong", "missing", "none"] = "none"
    """`missing`: it should have one; `none`: it can't."""


class Alarms(Record):
    """Salts that alarmed at one weight."""

    weight: int
    salts: int
    quality: int = 0
    errors: int = 0
    latency: int = 0
    unavailable: int = 0
    shares: int = 0
    """Of traffic or grades: what a person would be asked about."""
    any: int = 0

    @property
    def share(self) -> float:
        return self.any / self.salts


class AACheck(Record):
    """The A/A test of a deployment."""

    alpha: float
    looks: int
    weights: tuple[Alarms, ...]

    @property
    def passed(self) -> bool:
        """Whether at no weight more salts alarm than alpha allows."""
        return all(row.share <= self.alpha for row in self.weights)

    def lines(self) -> list[str]:
        """For a person."""
        kinds = ("quality", "errors", "latency", "unavailable", "shares")
        lines = ["weight  alarms  " + "  ".join(kinds)]
        for row in self.weights:
            counts = "  ".join(f"{getattr(row, kind):>{len(kind)}}" for kind in kinds)
            lines.append(f"{row.weight:>5}%  {row.share:>6.1%}  {counts}")
        salts = self.weights[0].salts if self.weights else 0
        verdict = "" if self.passed else ": more than alpha. Don't roll out by these rules before you know why"
        return [*lines, f"{salts} salts, {self.looks} looks, alpha {self.alpha:g}{verdict}"]


def aa(requests: Sequence[ServedRequest], policy: RolloutPolicy, look_s: float, salts: int = SALTS) -> AACheck:
    """Watch `requests`, in looks of `look_s` seconds, split by each of `salts` salts at each weight of the policy.

    Raises ValueError without requests, or where the router does not split by user: there is nobody to hash.
    """
    if policy.unit != "user":
        raise ValueError(
            "This router splits by request: arms differ by chance alone. The A/A test is for sticky routers."
        )
    if not requests or look_s <= 0:
        raise ValueError(f"{len(requests)} requests in looks of {look_s:g} s: nothing to split. Give last week's rows.")
    week = _Week(requests, look_s)
    weights = sorted({policy.weight_at(stage) for stage in range(len(policy.weights))})
    points = [_points(week.users, f"aa-{number}") for number in range(salts)]
    rows = (_alarms(week, policy, weight, points) for weight in weights)
    return AACheck(alpha=policy.alpha, looks=len(week.looks), weights=tuple(rows))


class _Week:
    """Requests as arrays, cut into looks."""

    def __init__(self, requests: Sequence[ServedRequest], look_s: float) -> None:
        ordered = sorted(requests, key=lambda each: each.at)
        self.users = sorted({each.unit for each in ordered})
        index = {unit: number for number, unit in enumerate(self.users)}
        self.user = np.array([index[each.unit] for each in ordered])
        self.latency = np.array([each.latency_s for each in ordered], dtype=np.float64)
        grades = np.array([each.grade for each in ordered])
        self.columns: dict[str, Array] = {
            "requests": np.ones(len(ordered)),
            "errors": np.array([each.failed for each in ordered], dtype=np.float64),
            "graded": np.isin(grades, ("right", "wrong")).astype(np.float64),
            "correct": (grades == "right").astype(np.float64),
            "ungraded": (grades == "missing").astype(np.float64),
        }
        number = np.array([math.floor((each.at - ordered[0].at) / look_s) for each in ordered])
        cuts = np.flatnonzero(np.diff(number)) + 1
        self.looks = [slice(a, b) for a, b in zip([0, *cuts], [*cuts, len(ordered)], strict=True)]


def _alarms(week: _Week, policy: RolloutPolicy, weight: int, points: Sequence[Array]) -> Alarms:
    seen = [_first_alarms(week, policy, weight, each < weight) for each in points]
    kinds = ("quality", "errors", "latency", "unavailable", "shares")
    counts = {kind: sum(kind in alarms for alarms in seen) for kind in kinds}
    return Alarms(weight=weight, salts=len(points), any=sum(bool(alarms) for alarms in seen), **counts)


def _first_alarms(week: _Week, policy: RolloutPolicy, weight: int, in_canary: NDArray[np.bool_]) -> set[str]:
    """What ends the stage, were it one: harm, or a doubt on the way there."""
    sums = {name: np.zeros(len(week.users)) for name in (*week.columns, "slow", "timed", "answered", "readable")}
    evidence, latencies, silent = LiveEvidence(), Latencies(), 0.0
    alarms: set[str] = set()
    for look in week.looks:
        user, threshold = week.user[look], evidence.slow_over_s
        for name, column in week.columns.items():
            sums[name] += np.bincount(user, weights=column[look], minlength=len(week.users))
        if threshold is None:
            latencies = latencies.plus(_histogram(week.latency[look][~in_canary[user]]))
            threshold = frozen_threshold(latencies, policy.max_p99_latency_ratio)
        else:
            slow = (week.latency[look] > threshold).astype(np.float64)
            sums["slow"] += np.bincount(user, weights=slow, minlength=len(week.users))
            sums["timed"] += np.bincount(user, minlength=len(week.users))
        ours = in_canary[user]
        answered = (ours & (week.columns["errors"][look] == 0)).any()
        silent = 0.0 if answered else silent + float(ours.sum())
        arms = [arm_sums({name: each[arm] for name, each in sums.items()}) for arm in (~in_canary, in_canary)]
        evidence = LiveEvidence(
            champion=arms[0], canary=arms[1], silent=silent, slow_over_s=threshold, basis=evidence.basis
        )
        evidence = evidence.model_copy(update={"basis": fixed_basis(evidence, policy)})
        if doubt(evidence, weight, policy):
            alarms.add("shares")
        if found := harm(evidence, policy):
            return alarms | {found.kind}
    return alarms


def _histogram(latencies: Array) -> Latencies:
    """Of these seconds, over edges 5% apart."""
    if not len(latencies):
        return Latencies()
    steps, counts = np.unique(np.ceil(np.log(np.maximum(latencies, 1e-6)) / math.log(EDGE_RATIO)), return_counts=True)
    return Latencies(edges_s=tuple(float(EDGE_RATIO**step) for step in steps), counts=tuple(map(float, counts)))


def _points(users: Sequence[str], salt: str) -> Array:
    """Where each user's salted hash lies in [0, 100), as at the router."""
    heads = (hashlib.sha256(f"{salt}/{user}".encode()).digest()[:8] for user in users)
    return np.array([int.from_bytes(head) / 2**64 * 100 for head in heads])
