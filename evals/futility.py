"""When to stop asking: a gate whose improvement test has become unlikely to pass needs no further answers.

Owns the order in which clusters are asked, the looks, and the chance that the final test passes given the answers so
far (conditional power at the design's effect: Lan, Simon and Halperin, Commun. Stat. 1982). Refuses to ask, to judge.
Stopping can only turn a PASS into a FAIL, so it spends no level, and the final test stays as it is whether or not
anyone looks (non-binding). Nothing stops early for success: every guard would have to be shown as early. What is known
at a stop is no estimate: the difference so far is there because it is low, so a stop carries none.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from evals.gate import MIN_CLUSTERS
from evals.statistics import Array, mean_and_standard_error, t_quantile
from pipeline.storage import Record

SHARES = (0.1, 0.2, 0.4, 0.6, 0.8)
"""Shares of the clusters after which the answers are looked at."""
STOP_BELOW = 0.1
"""Conditional power below which asking ends."""


class FutilityStop(Record):
    """Asking ended after `clusters` of `planned` clusters, because no target had at least `STOP_BELOW` left: `power` is
    the chance, by suite, that the final test would have passed."""

    clusters: int
    planned: int
    power: dict[str, float]

    def reason(self) -> str:
        chances = ", ".join(f"{name} {chance:.1%}" for name, chance in self.power.items())
        return (
            f"improvement not shown: stopped after {self.clusters} of {self.planned} clusters, when the chance that "
            f"the whole suite would still show it was {chances}"
        )


def asking_order(clusters: Iterable[str], seed: int) -> tuple[str, ...]:
    """The names in a random order that `seed` and the names alone decide: every prefix is a fair sample."""
    names = sorted(set(clusters))
    random.Random(seed).shuffle(names)
    return tuple(names)


def looks(clusters: int) -> tuple[int, ...]:
    """After how many of so many clusters to look; not before there are enough to estimate a spread from."""
    return tuple(at for share in SHARES if MIN_CLUSTERS <= (at := math.ceil(share * clusters)) < clusters)


def conditional_power(sums: Array, sizes: Array, clusters: int, effect: float, alpha: float) -> Array:
    """The chance that the lower one-sided 1 - alpha bound over all `clusters` lies above 0, given the first of them.

    `sums` is (..., c): candidate minus champion in samples of each cluster so far, of (c,) `sizes`. `effect` is the
    difference that the clusters to come are taken to have, such as the one that the plan would show with 0.8
    (`power.SuitePlan.gain`); their spread is that of the clusters so far. Shape (...).
    """
    share = len(sizes) / clusters
    mean, error = mean_and_standard_error(sums, sizes)
    final = error * math.sqrt(share)
    ahead = share * mean + (1 - share) * effect + t_quantile(alpha, clusters - 1) * final
    spread = np.sqrt(1 - share) * final
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(spread > 0, _normal(ahead / spread), np.where(ahead > 0, 1.0, 0.0))


def futile(powers: Sequence[float], improve: Literal["all", "any", "cost"]) -> bool:
    """Whether targets of these conditional powers leave nothing to ask for: one of `all`, each of `any`.

    With `cost` the score of a target need not improve, and nothing is stopped.
    """
    below = [each < STOP_BELOW for each in powers]
    return improve != "cost" and bool(below) and (any(below) if improve == "all" else all(below))


def _normal(z: Array) -> Array:
    from scipy.special import ndtr

    return np.asarray(ndtr(z))
