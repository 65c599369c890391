"""A figure from a sample, with its interval."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import NonNegativeInt, model_validator

from pipeline.core.storage import Record

Array = NDArray[np.float64]

Z95 = 1.959963984540054


class Estimate(Record):
    """A value with its 95% interval and the observations behind it; with none, all three are None."""

    value: float | None
    low: float | None
    high: float | None
    n: NonNegativeInt

    @model_validator(mode="after")
    def _together(self) -> Self:
        if len({x is None for x in (self.value, self.low, self.high)}) != 1:
            raise ValueError(f"value {self.value}, low {self.low} and high {self.high}: give all three or none.")
        return self

    def __str__(self) -> str:
        if self.value is None or self.low is None or self.high is None:
            return f"unknown (n={self.n:,})"
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f}, n={self.n:,})"


UNKNOWN = Estimate(value=None, low=None, high=None, n=0)


def share(successes: float, n: int) -> Estimate:
    """A share of independent observations, with Wilson's score interval (unknown for n = 0)."""
    if n == 0:
        return UNKNOWN
    p, z2 = successes / n, Z95**2
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    low, high = max(0.0, min(p, centre - half)), min(1.0, max(p, centre + half))
    return Estimate(value=p, low=low, high=high, n=n)


def mean(values: Sequence[float]) -> Estimate:
    """Mean of independent observations with its normal interval; unknown below two."""
    if len(values) < 2:
        return Estimate(value=None, low=None, high=None, n=len(values))
    middle, half = fmean(values), Z95 * stdev(values) / math.sqrt(len(values))
    return Estimate(value=middle, low=middle - half, high=middle + half, n=len(values))


def rank_correlation(first: Sequence[float] | Array, second: Sequence[float] | Array) -> Estimate:
    """Spearman's rho of independent pairs, with an interval on the scale of Fisher's z; unknown below four pairs.

    The variance is the larger of Bonett and Wright's (2000), (1 + rho^2 / 2) / (n - 3), which is for continuous values,
    and the plug-in one of rho's influence function. Of a perfect sample up to three observations could have been
    reversed (rule of three, Hanley and Lippman-Hand 1983).
    """
    from scipy.stats import rankdata

    n = len(first)
    u, v = ((rankdata(values) - (n + 1) / 2) / max(1, n) for values in (first, second))
    spread = math.sqrt(float(np.mean(u * u) * np.mean(v * v))) if n else 0.0
    if n < 4 or spread == 0:
        return Estimate(value=None, low=None, high=None, n=n)
    rho = max(-1.0, min(1.0, float(np.mean(u * v)) / spread))
    bounded = max(-0.999999, min(0.999999, rho))
    variance = max(1 + bounded**2 / 2, _influence(u, v) / (1 - bounded**2) ** 2) / (n - 3)
    half, z = Z95 * math.sqrt(variance), math.atanh(bounded)
    low, high = min(rho, math.tanh(z - half)), max(rho, math.tanh(z + half))
    if abs(rho) > 1 - 1e-9:
        reversible = max(-1.0, 1 - 1.5 * float(np.ptp(u) * np.ptp(v)) / (n * spread))
        low, high = (min(low, reversible), high) if rho > 0 else (low, max(high, -reversible))
    return Estimate(value=rho, low=low, high=high, n=n)


def _influence(u: Array, v: Array) -> float:
    """Asymptotic variance of sqrt(n) rho, with ties: mean square of an observation's influence. `u` and `v`: centred
    ranks divided by n."""
    uv, uu, vv = (float(np.mean(product)) for product in (u * v, u * u, v * v))
    product = u * v + _outranked(u, v) + _outranked(v, u) - 3 * uv
    first, second = (c * c + 2 * _outranked(c, c) - 3 * square for c, square in ((u, uu), (v, vv)))
    influence = product / math.sqrt(uu * vv) - uv / math.sqrt(uu * vv) / 2 * (first / uu + second / vv)
    return float(np.mean(influence**2))


def _outranked(ranks: Array, weights: Array) -> Array:
    """For each observation the sum of `weights` over those that rank above it, ties by half, divided by n."""
    _, group = np.unique(ranks, return_inverse=True)
    sums = np.bincount(group, weights)
    return (sums.sum() - np.cumsum(sums) + sums / 2)[group] / len(ranks)
