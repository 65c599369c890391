"""Drift: the distribution of `final_reward` against that of the iteration before.

The measure is the population stability index of credit scoring, the symmetrised Kullback-Leibler divergence (Jeffreys,
1946) of two histograms: the sum over bins of (p - q) ln(p / q). A bin that one of the two leaves empty counts as half
an observation there; a bin that both leave empty does not count. It is blind to the order of bins (a step to the next
bin weighs as much as one across the scale: `mean_change` stands beside it), to what moves within a bin, and to causes:
a policy that got better drifts as much as a judge that got lenient. Two samples of one distribution over B bins give
about (B - 1)(1/n + 1/m): with 20 bins and 400 labels each that is 0.1, so below a thousand it says little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pydantic import NonNegativeInt

from pipeline.core import layout
from pipeline.core.storage import Record, Store
from pipeline.rewards.records import Drift

FLOOR = 0.5
"""Observations that an empty bin counts as, where the other histogram has some."""


class RewardDistribution(Record):
    """How an iteration's labels are spread over equal bins of [0, 1]; the mean is of those that have a reward."""

    iteration: str
    number: int
    model_name: str
    histogram: tuple[NonNegativeInt, ...]
    mean: float


class RecordedDistribution(Record):
    """A distribution on record. `place`: how many were there when it came."""

    place: int
    distribution: RewardDistribution


def record(store: Store, distribution: RewardDistribution) -> None:
    """Keep it for later iterations. An iteration that is run again keeps its place."""
    others = [each for each in _all(store) if each.distribution.iteration != distribution.iteration]
    recorded = store.read(_name(distribution), RecordedDistribution)
    place = recorded.place if recorded else 1 + max((each.place for each in others), default=-1)
    entry = RecordedDistribution(place=place, distribution=distribution)
    if entry != recorded:
        store.write(_name(distribution), entry)


def against(store: Store, distribution: RewardDistribution) -> Drift | None:
    """The drift from the iteration before to this one, which is on record; None where no earlier one has labels.

    Before it is, of the same model and of this number or a lower one, what was recorded last before this one: several
    iterations have the same number when their candidates were not promoted.
    """
    own = store.read(_name(distribution), RecordedDistribution)
    assert own is not None, f"{distribution.iteration} has to be recorded first"
    earlier = [each for each in _all(store) if each.place < own.place and _comparable(each.distribution, distribution)]
    if not earlier or not sum(distribution.histogram):
        return None
    last = max(earlier, key=lambda each: (each.distribution.number, each.place, each.distribution.iteration))
    return Drift(
        against=last.distribution.iteration,
        stability_index=stability_index(last.distribution.histogram, distribution.histogram),
        mean_change=distribution.mean - last.distribution.mean,
    )


def stability_index(before: Sequence[int], after: Sequence[int]) -> float:
    """Population stability index of two histograms over the same bins, each with at least one observation."""
    assert len(before) == len(after) and sum(before) and sum(after), "two histograms of the same bins"
    bins = [(max(p, FLOOR), max(q, FLOOR)) for p, q in zip(before, after, strict=True) if p or q]
    all_before, all_after = (sum(column) for column in zip(*bins, strict=True))
    shares = [(p / all_before, q / all_after) for p, q in bins]
    return math.fsum((p - q) * math.log(p / q) for p, q in shares)


def _comparable(earlier: RewardDistribution, this: RewardDistribution) -> bool:
    same = earlier.model_name == this.model_name and len(earlier.histogram) == len(this.histogram)
    return same and earlier.number <= this.number and sum(earlier.histogram) > 0


def _all(store: Store) -> list[RecordedDistribution]:
    names = sorted(path.name for path in store.path(layout.DISTRIBUTIONS).glob("[0-9]*.json"))
    records = (store.read(f"{layout.DISTRIBUTIONS}/{name}", RecordedDistribution) for name in names)
    return [each for each in records if each is not None]


def _name(distribution: RewardDistribution) -> str:
    return f"{layout.DISTRIBUTIONS}/{distribution.number:05d}-{distribution.iteration}.json"
