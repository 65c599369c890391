"""A figure from a sample, with its interval."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray
from pydantic import NonNegativeInt

from pipeline.core.storage import Record

Array = NDArray[np.float64]

Z95 = 1.959963984540054


class Estimate(Record):
    """A value with its 95% interval and the observations behind it; with none, all three are None."""

    value: float | None
    low: float | None
    high: float | None
    n: NonNegativeInt

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
