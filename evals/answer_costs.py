"""What answers cost, in money and in time: for the reader, and for the budget of an answer.

Money is tokens times the recipe's prices. Time is the wall-clock time of an answer per token of it, its prompt and its
wait in the server included, as it was when the answer was drawn: a champion's answers may be of an earlier day. Owns
the records and how they are estimated. Refuses to decide.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evals import statistics
from evals.results import ItemCounts
from evals.statistics import Array
from pipeline.recipe.evaluation import AnswerPrice
from pipeline.storage import Record

QUANTILES = (0.5, 0.99)
DRAWS = 2_000


class Spread(Record):
    """A value with its two-sided 95% interval, in the unit of whoever has it."""

    value: float
    low: float
    high: float


class CostComparison(Record):
    """USD of an answer, of both models; `ratio` is candidate over champion."""

    champion: Spread
    candidate: Spread
    ratio: Spread


class TokenTime(Record):
    """A quantile of the seconds per token of both models; `ratio` is candidate over champion."""

    quantile: float
    champion: Spread
    candidate: Spread
    ratio: Spread


def compare_cost(
    before: Sequence[ItemCounts],
    after: Sequence[ItemCounts],
    clusters: Sequence[str],
    price: AnswerPrice | None,
    seed: int,
) -> CostComparison | None:
    """None without a price. Items in the same order in both; intervals by cluster t, that of the ratio by bootstrap."""
    if price is None:
        return None
    sizes = statistics.cluster_sums(np.array([float(each.samples) for each in before]), clusters)
    one, other = (
        statistics.cluster_sums(np.array([_usd(each, price) for each in arm]), clusters) for arm in (before, after)
    )
    draws = [(times @ one, times @ other) for times in statistics.resamples(len(sizes), DRAWS, seed)]
    ratios = np.concatenate([_ratio(after, before) for before, after in draws])
    value = float(_ratio(other.sum(keepdims=True), one.sum(keepdims=True))[0])
    return CostComparison(champion=_mean(one, sizes), candidate=_mean(other, sizes), ratio=_interval(value, ratios))


def compare_times(
    before: Sequence[ItemCounts], after: Sequence[ItemCounts], clusters: Sequence[str], seed: int
) -> tuple[TokenTime, ...]:
    """Of each quantile; nothing where the times of one model are not known. Clusters are drawn anew, whole, the same of
    both models."""
    names = sorted(set(clusters))
    index = {name: place for place, name in enumerate(names)}
    sides: list[tuple[Array, list[int]]] = []
    for arm in (before, after):
        items = zip(arm, clusters, strict=True)
        times = sorted((t, index[name]) for each, name in items for t in each.token_seconds or ())
        if not times:
            return ()
        sides.append((np.array([t for t, _ in times]), [place for _, place in times]))
    drawn: list[list[Array]] = [[], []]
    for times in statistics.resamples(len(names), DRAWS, seed):
        for place, (values, where) in enumerate(sides):
            drawn[place].append(_quantiles(values, times[:, where]))
    points = [_quantiles(values, np.ones((1, len(values))))[:, 0] for values, _ in sides]
    one, other = (np.concatenate(each, axis=1) for each in drawn)
    return tuple(
        TokenTime(
            quantile=quantile,
            champion=_interval(float(points[0][row]), one[row]),
            candidate=_interval(float(points[1][row]), other[row]),
            ratio=_interval(
                float(_ratio(points[1][row : row + 1], points[0][row : row + 1])[0]), _ratio(other[row], one[row])
            ),
        )
        for row, quantile in enumerate(QUANTILES)
    )


def _usd(counts: ItemCounts, price: AnswerPrice) -> float:
    """Of all samples of an item. The prompt is paid for with each of them."""
    prompt = counts.samples * counts.prompt_tokens * price.usd_per_million_prompt_tokens
    return (prompt + counts.tokens * price.usd_per_million_completion_tokens) / 1e6


def _mean(sums: Array, sizes: Array) -> Spread:
    mean, error = (float(each) for each in statistics.mean_and_standard_error(sums, sizes))
    half = statistics.t_quantile((1 + statistics.LEVEL) / 2, len(sizes) - 1) * error
    return Spread(value=mean, low=max(0.0, mean - half), high=mean + half)


def _quantiles(ordered: Array, weights: Array) -> Array:
    """(quantiles, rows) of ordered values under rows of weights: the least value that so much of the weight is at."""
    reached = weights.cumsum(axis=1)
    places = [(reached < q * reached[:, -1:]).sum(axis=1).clip(max=len(ordered) - 1) for q in QUANTILES]
    return np.stack([ordered[place] for place in places])


def _ratio(after: Array, before: Array) -> Array:
    """Of two amounts that are not below 0; 1 where both are 0."""
    tiny = 1e-12
    return np.maximum(after, tiny) / np.maximum(before, tiny)


def _interval(value: float, drawn: Array) -> Spread:
    tail = (1 - statistics.LEVEL) / 2
    low, high = (float(np.quantile(drawn, level)) for level in (tail, 1 - tail))
    return Spread(value=value, low=min(low, value), high=max(high, value))
