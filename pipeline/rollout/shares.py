"""A share of one arm (right answers of graded ones, errors of requests), its variance between users by the jackknife,
a test of it that may be taken at every look, and latencies as a histogram with the threshold that is frozen from it."""

from __future__ import annotations

import math
from collections import Counter
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from pipeline.core.storage import Record
from pipeline.rollout.policy import Unit

MIN_USERS = 20
"""Users in an arm below which a variance between them is not to be trusted."""


class Ratio(Record):
    """Hits of trials, and how they spread over units."""

    hits: float = 0
    trials: float = 0
    units: float = 0
    """Units with a trial."""
    squares: float = 0
    """Sum over units of their squared residual (hits - share x trials), each over its leverage's complement."""

    @property
    def share(self) -> float:
        return self.hits / self.trials

    def minus(self, before: Ratio) -> Ratio:
        trials = self.trials - before.trials
        kept = trials / self.trials if self.trials else 0.0
        return Ratio(hits=self.hits - before.hits, trials=trials, units=self.units, squares=self.squares * kept)


def ratio(hits: NDArray[np.float64], trials: NDArray[np.float64]) -> Ratio:
    """Of one arm's units: `hits` and `trials` of each, shape (units,)."""
    total = float(trials.sum())
    if total <= 0:
        return Ratio()
    squares = ((influence(hits, trials) * total) ** 2).sum()
    return Ratio(hits=float(hits.sum()), trials=total, units=float((trials > 0).sum()), squares=float(squares))


def influence(hits: NDArray[np.float64], trials: NDArray[np.float64]) -> NDArray[np.float64]:
    """How much each unit moves the share of its arm; needs trials. Same shapes as above."""
    total = trials.sum()
    residual = hits - hits.sum() / total * trials
    leverage = np.minimum(trials / total, 1 - 1e-9)  # a unit that is alone: its residual is 0, its variance unknown
    return residual / (1 - leverage) / total


def variance(ratio: Ratio, unit: Unit) -> float:
    """Of the share: that of independent requests, or that between users where it is more; infinite when unknown.
    Smoothed by one success and one failure: a share of 0 or 1 in a few requests is not certain."""
    if ratio.trials <= 0:
        return math.inf
    share = (ratio.hits + 1) / (ratio.trials + 2)
    pooled = share * (1 - share) / ratio.trials
    if unit == "request":
        return pooled
    if ratio.units < 2:
        return math.inf
    return max(pooled, (ratio.units - 1) / ratio.units * ratio.squares / ratio.trials**2)


def enough(ratio: Ratio, unit: Unit, trials: float) -> bool:
    """Whether there are that many trials, and the users that a variance between users takes."""
    return ratio.trials >= trials and (unit == "request" or ratio.units >= MIN_USERS)


def radius(variance: float, alpha: float, scale: float) -> float:
    """Above which a running estimate with this variance proves its mean to be above zero: a one-sided normal-mixture
    confidence sequence (arXiv 2103.06476), asymptotic, so it wants counts in the tens. Over all looks together it is
    wrong with probability at most `alpha`; sharpest for means of about `scale`. Infinite without a variance, or with an
    infinite one: nothing is proven."""
    if not 0 < variance < math.inf:
        return math.inf
    ratio = scale**2 / variance
    return math.sqrt(variance * 2 * (1 + 1 / ratio) * math.log(1 + math.sqrt(1 + ratio) / (2 * alpha)))


def proven(excess: float, variance: float, alpha: float, scale: float) -> bool:
    return excess > radius(variance, alpha, scale)


MIN_TIMED = 2_000
"""Requests of the champion that its p99 takes."""
P99 = 0.99
LEVEL_Z = 1.645
"""One-sided 5%."""


class Latencies(Record):
    """A histogram of seconds: `counts[i]` requests took at most `edges_s[i]` and more than the edge before."""

    edges_s: tuple[float, ...] = ()
    counts: tuple[float, ...] = ()

    def plus(self, other: Latencies) -> Latencies:
        counts = Counter[float]()
        for each in (self, other):
            counts.update(dict(zip(each.edges_s, each.counts, strict=True)))
        edges = sorted({*self.edges_s, *other.edges_s})
        return Latencies(edges_s=tuple(edges), counts=tuple(counts[edge] for edge in edges))


def frozen_threshold(champion: Latencies, limit: float) -> float | None:
    """Seconds: `limit` times the champion's p99 (upper end of its 95% interval), up to the next edge, so that a source
    with buckets counts over it exactly. None below 2,000 requests, or where the histogram's last edge is too low."""
    total = sum(champion.counts)
    if total < MIN_TIMED:
        return None
    rank = total * P99 + LEVEL_Z * math.sqrt(total * P99 * (1 - P99))
    reached = zip(champion.edges_s, accumulate(champion.counts), strict=True)
    p99 = next((edge for edge, seen in reached if seen >= rank), math.inf)
    threshold = min((edge for edge in champion.edges_s if edge >= limit * p99), default=limit * p99)
    return threshold if math.isfinite(threshold) else None
