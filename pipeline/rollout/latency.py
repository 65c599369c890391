"""Latencies as a histogram, and the threshold that is frozen from the champion's.

A p99 of under a hundred requests is their maximum, so p99s of looks say nothing. Instead requests over one threshold
are counted, of which an equal canary has at most 1%. Owns the histogram. Refuses to judge.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import lru_cache

from pipeline.core.storage import Record

MIN_TIMED = 2_000
"""Requests of the champion that its p99 takes."""
P99 = 0.99


class Latencies(Record):
    """A histogram of seconds: `counts[i]` requests took at most `edges_s[i]` and more than the edge before."""

    edges_s: tuple[float, ...] = ()
    counts: tuple[float, ...] = ()

    @property
    def total(self) -> float:
        return sum(self.counts)

    def plus(self, other: Latencies) -> Latencies:
        """Both together, over the edges of both."""
        counts = Counter[float]()
        for each in (self, other):
            counts.update(dict(zip(each.edges_s, each.counts, strict=True)))
        edges = sorted({*self.edges_s, *other.edges_s})
        return Latencies(edges_s=tuple(edges), counts=tuple(counts[edge] for edge in edges))

    def malformed(self) -> str:
        """Why it is no histogram, or ""."""
        rising = all(a < b for a, b in zip(self.edges_s, self.edges_s[1:], strict=False))
        counted = all(0 <= count < math.inf for count in self.counts)
        if len(self.edges_s) == len(self.counts) and rising and counted and all(edge >= 0 for edge in self.edges_s):
            return ""
        return f"latencies are no histogram: edges {self.edges_s}, counts {self.counts}"


def frozen_threshold(champion: Latencies, limit: float) -> float | None:
    """Seconds: `limit` times the champion's p99 (upper end of its 95% interval), up to the next edge, so that a source
    with buckets counts over it exactly. None below 2,000 requests, or where the histogram's last edge is too low."""
    total = champion.total
    if total < MIN_TIMED:
        return None
    rank, seen, p99 = _upper_rank(math.floor(total)), 0.0, math.inf
    for edge, count in zip(champion.edges_s, champion.counts, strict=True):
        seen += count
        if seen >= rank:
            p99 = edge
            break
    threshold = min((edge for edge in champion.edges_s if edge >= limit * p99), default=limit * p99)
    return threshold if math.isfinite(threshold) else None


@lru_cache(maxsize=64)
def _upper_rank(total: int) -> int:
    """Rank among `total` requests that lies over the true p99 with a probability of 95%."""
    from scipy.stats import binom

    return min(total, int(binom.ppf(0.95, total, P99)) + 1)
