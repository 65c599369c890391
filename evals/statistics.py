"""Statistics of paired, clustered evaluations. Counts of samples go in (whole numbers, so sums are exact in any order),
shares of samples come out; leading axes are independent experiments."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from evals.records import Difference

# scipy.special is imported inside the functions: it would double the time that loading the asset definitions takes.

Array = NDArray[np.float64]

LEVEL = 0.95
"""Level of every two-sided interval that is reported."""

BOOTSTRAP_DRAWS = 10_000
_CHUNK = 500


def cluster_sums(counts: Array, clusters: Sequence[str]) -> Array:
    """Sum counts of shape (..., items) into (..., clusters), clusters in the order of their names."""
    names, index = np.unique(np.asarray(clusters, dtype=str), return_inverse=True)
    membership = np.zeros((len(clusters), len(names)))
    membership[np.arange(len(clusters)), index] = 1.0
    return counts @ membership


def mean_and_standard_error(sums: Array, sizes: Array) -> tuple[Array, Array]:
    """Mean over samples, and its standard error when clusters are independent and samples inside one are not.

    `sums` is (..., C), `sizes` (C,) counts the samples of each cluster; both results are (...). With equal sizes this
    is the standard error of C cluster means; the factor C/(C-1) makes it unbiased (arXiv 2411.00640).
    """
    total, c = sizes.sum(), len(sizes)
    all_sums = sums.sum(axis=-1)
    # Divided last: of whole numbers, clusters that all agree then leave an error of exactly 0.
    residuals = (sums * total - all_sums[..., None] * sizes) / total
    return all_sums / total, np.sqrt((residuals**2).sum(axis=-1) * c / (c - 1)) / total


def t_quantile(probability: float, dof: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(dof, probability))


def normal_quantile(probability: float) -> float:
    from scipy.special import ndtri

    return float(ndtri(probability))


def zero_event_bound(clusters: int, alpha: float) -> float:
    """Upper 1-alpha bound of a share of which no cluster showed an event (exact binomial; about 3/C at 95%)."""
    return 1 - alpha ** (1 / clusters)


def reach(mean: Array, standard_error: Array, clusters: int, alpha: float) -> tuple[Array, Array]:
    """How far below and above a mean difference in [-1, 1] its one-sided 1-alpha bounds lie.

    Where all clusters differ alike, or none does, the t interval would have no width: fewer clusters than the exact
    zero-event bound says are different from those that were seen, each by as much as it can be.
    """
    half = -t_quantile(alpha, clusters - 1) * standard_error
    unseen, still = zero_event_bound(clusters, alpha), standard_error == 0
    return np.where(still, unseen * (1 + mean), half), np.where(still, unseen * (1 - mean), half)


def wilson(successes: float, n: int, level: float = LEVEL) -> tuple[float, float]:
    """Wilson's score interval of a binomial share, which is in it whatever the rounding."""
    z = normal_quantile((1 + level) / 2)
    share, scale = successes / n, 1 + z * z / n
    centre = (share + z * z / (2 * n)) / scale
    half = z / scale * float(np.sqrt(share * (1 - share) / n + z * z / (4 * n * n)))
    return max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half))


def accuracy_interval(sums: Array, sizes: Array, level: float = LEVEL) -> tuple[float, float, float]:
    """(mean, low, high) of one arm: cluster t; Wilson over clusters when each is one sample or none of them vary.

    A t interval has no width when all clusters agree, which is exactly when it would be trusted most.
    """
    mean, error = (float(x) for x in mean_and_standard_error(sums, sizes))
    if error == 0 or sizes.max() == 1:
        return (mean, *wilson(mean * len(sizes), len(sizes), level))
    half = t_quantile((1 + level) / 2, len(sizes) - 1) * error
    return mean, max(0.0, mean - half), min(1.0, mean + half)


def mcnemar(wins: int, losses: int) -> float:
    """Exact one-sided McNemar test: the chance of at least so many wins among the discordant pairs of equal models."""
    from scipy.special import betainc

    return float(betainc(wins, losses + 1, 0.5))


def resamples(clusters: int, draws: int, seed: int) -> Iterator[Array]:
    """How often each cluster is in each of `draws` resamples of whole clusters, as (rows, clusters) a time; the same
    for a seed."""
    rng = np.random.default_rng(seed)
    for first in range(0, draws, _CHUNK):
        rows = min(_CHUNK, draws - first)
        picked = rng.integers(0, clusters, size=(rows, clusters)) + clusters * np.arange(rows)[:, None]
        yield np.bincount(picked.ravel(), minlength=rows * clusters).reshape(rows, clusters).astype(np.float64)


def bootstrap_means(sums: Array, sizes: Array, draws: int, seed: int) -> Array:
    """Means of `draws` resamples of whole clusters: (E, C) sums and (C,) sizes give (E, draws), the same for a seed."""
    means = [(sums @ times.T) / (times @ sizes) for times in resamples(len(sizes), draws, seed)]
    return np.concatenate(means, axis=1)


def paired(sums: Array, sizes: Array, alpha: float, seed: int, draws: int = BOOTSTRAP_DRAWS) -> list[Difference]:
    """The mean paired difference (candidate minus champion) of each of E experiments, from (E, C) sums of per-item
    differences over (C,) sizes, in samples. One-sided bounds are at 1 - alpha, the two-sided interval at `LEVEL`."""
    mean, error = mean_and_standard_error(sums, sizes)
    one_sided, two_sided = (reach(mean, error, len(sizes), tail) for tail in (alpha, (1 - LEVEL) / 2))
    return _differences(mean, error, one_sided, two_sided, bootstrap_means(sums, sizes, draws, seed), alpha)


def _differences(
    value: Array, error: Array, one: tuple[Array, Array], two: tuple[Array, Array], drawn: Array, alpha: float
) -> list[Difference]:
    """`one`, `two`: how far one-sided bounds and the two-sided interval lie below and above. `drawn` is (E, draws)."""
    columns = {
        "value": value,
        "standard_error": error,
        "low": value - two[0],
        "high": value + two[1],
        "lower": value - one[0],
        "upper": value + one[1],
        "bootstrap_lower": np.quantile(drawn, alpha, axis=1),
        "bootstrap_upper": np.quantile(drawn, 1 - alpha, axis=1),
    }
    return [Difference(**{name: float(each[row]) for name, each in columns.items()}) for row in range(len(value))]


def log_ratio(before: Array, after: Array, alpha: float, seed: int, draws: int = BOOTSTRAP_DRAWS) -> Difference:
    """The logarithm of the ratio of two paired totals over (C,) clusters; 0 where both are 0.

    The standard error is linearised (the delta method), with t of C - 1 degrees of freedom; the bootstrap draws whole
    clusters. A total of 0 against one that is not has no logarithm: it counts as half a token.
    """
    c, one, other = len(before), *(max(float(each.sum()), 0.5) for each in (before, after))
    residuals = after / other - before / one
    error = np.array([math.sqrt(float((residuals**2).sum()) * c / (c - 1))])
    value = np.array([math.log(other / one)])
    half, wide = (-t_quantile(tail, c - 1) * error for tail in (alpha, (1 - LEVEL) / 2))
    totals = bootstrap_means(np.stack([before, after]), np.ones(c), draws, seed) * c
    drawn = np.diff(np.log(np.maximum(totals, 0.5)), axis=0)
    return _differences(value, error, (half, half), (wide, wide), drawn, alpha)[0]
