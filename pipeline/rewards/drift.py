"""Drift: the population stability index of `final_reward` against the iteration before.

The sum over bins of (p - q) ln(p / q) (Jeffreys, 1946); with B bins, two equal sources give (B - 1)(1/n + 1/m).
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
    place: int = -1
    """How many were on record when it came."""


def record(store: Store, distribution: RewardDistribution) -> RewardDistribution:
    """Keep it for later iterations; with its place, which an iteration that is run again keeps."""
    others = [each for each in _all(store) if each.iteration != distribution.iteration]
    recorded = store.read(_name(distribution), RewardDistribution)
    place = recorded.place if recorded else 1 + max((each.place for each in others), default=-1)
    placed = distribution.model_copy(update={"place": place})
    if placed != recorded:
        store.write(_name(placed), placed)
    return placed


def against(store: Store, own: RewardDistribution) -> Drift | None:
    """The drift from the iteration before to this one, which is on record; None where no earlier one has labels.

    Before it is, of the same model and of this number or a lower one, what was recorded last before this one: several
    iterations have the same number when their candidates were not promoted.
    """
    earlier = [
        each
        for each in _all(store)
        if each.place < own.place
        and (each.model_name, len(each.histogram)) == (own.model_name, len(own.histogram))
        and each.number <= own.number
        and sum(each.histogram) > 0
    ]
    if not earlier or not sum(own.histogram):
        return None
    last = max(earlier, key=lambda each: (each.number, each.place, each.iteration))
    return Drift(
        against=last.iteration,
        stability_index=stability_index(last.histogram, own.histogram),
        mean_change=own.mean - last.mean,
    )


def stability_index(before: Sequence[int], after: Sequence[int]) -> float:
    """Population stability index of two histograms over the same bins, each with at least one observation."""
    assert len(before) == len(after) and sum(before) and sum(after), "two histograms of the same bins"
    bins = [(max(p, FLOOR), max(q, FLOOR)) for p, q in zip(before, after, strict=True) if p or q]
    all_before, all_after = (sum(column) for column in zip(*bins, strict=True))
    shares = [(p / all_before, q / all_after) for p, q in bins]
    return math.fsum((p - q) * math.log(p / q) for p, q in shares)


def _all(store: Store) -> list[RewardDistribution]:
    names = sorted(path.name for path in store.path(layout.DISTRIBUTIONS).glob("[0-9]*.json"))
    records = (store.read(f"{layout.DISTRIBUTIONS}/{name}", RewardDistribution) for name in names)
    return [each for each in records if each is not None]


def _name(distribution: RewardDistribution) -> str:
    return f"{layout.DISTRIBUTIONS}/{distribution.number:05d}-{distribution.iteration}.json"
