"""A test that may be taken at every look: a one-sided normal-mixture confidence sequence (arXiv 2103.06476).

However often one looks, its chance of a false alarm stays below its level. Asymptotic: it wants
counts in the tens. Refuses to know what is counted.
"""

from __future__ import annotations

import math


def proven(excess: float, variance: float, alpha: float, scale: float) -> bool:
    """Whether a running estimate with this variance proves its mean to be above zero.

    Over all looks together it is wrong with probability at most `alpha`; sharpest for means of about `scale`. Without a
    variance, or with an infinite one, nothing is proven.
    """
    if not 0 < variance < math.inf:
        return False
    ratio = scale**2 / variance
    return excess > math.sqrt(variance * 2 * (1 + 1 / ratio) * math.log(1 + math.sqrt(1 + ratio) / (2 * alpha)))
