"""What a suite can show, planned before anything is paid for: the gate's own limits, turned into items and clusters.

Owns the plan of a gate without a verdict. Refuses to judge one (gate.py). The standard error of the paired difference
is sqrt((b + w/k)/n): b and w are the variance of the difference between items and within one, k the samples of each of
n items; a gain of (z(1-alpha) + z(power)) standard errors is shown with that power (arXiv 2411.00640, section 5).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from evals.gate import GUARD_POWER, MIN_CLUSTERS, MIN_ITEMS
from evals.runner import sampling
from evals.statistics import normal_quantile, zero_event_bound
from evals.suites import Suite
from pipeline.recipe import Evaluation


class Variance(NamedTuple):
    """Of the difference of two models' pass rates: between items, and of one sample within an item."""

    between: float
    within: float


UNKNOWN_MODEL = Variance(between=0.10, within=0.30)
"""For a first gate: an assumption on the safe side for a chat model."""
EMBEDDED_MODEL = Variance(between=0.003, within=0.319)
"""Measured on the embedded model over its own suite."""


class Power(NamedTuple):
    """What a gate over so many items and samples would be able to show."""

    items: int
    clusters: int
    standard_error: float
    gain: float
    """The improvement of accuracy that passes with a power of 0.8."""
    guard: float
    """The upper bound of a guard of which neither model shows an event: no margin below it can be held."""


def plan(suite: Suite, section: Evaluation, variance: Variance) -> Power:
    """The power of the recipe's evaluation over this suite."""
    samples = sampling(section, section.suite(suite.name)).samples
    error = math.sqrt((variance.between + variance.within / samples) / len(suite.items))
    reach = normal_quantile(1 - section.improvement_alpha()) + normal_quantile(GUARD_POWER)
    bound = zero_event_bound(suite.clusters, section.alpha)
    return Power(len(suite.items), suite.clusters, error, reach * error, bound)


def shortfalls(suites: Sequence[Suite], section: Evaluation, variance: Variance) -> list[str]:
    """Why a gate over these suites could not pass any candidate: a sentence each, with what to do. Empty: it could."""
    if not 0 < section.alpha < 0.5:
        return [f"evaluation.alpha is {section.alpha}, and no level of a test. Set it between 0 and 0.5, such as 0.05."]
    gating = [suite for suite in suites if section.suite(suite.name).role != "report"]
    return [f"suite {suite.name}: {why}" for suite in gating for why in _shortfalls(suite, section, variance)]


def _shortfalls(suite: Suite, section: Evaluation, variance: Variance) -> list[str]:
    settings = section.suite(suite.name)
    planned = plan(suite, section, variance)
    short: list[str] = []
    if planned.items < MIN_ITEMS or planned.clusters < MIN_CLUSTERS:
        short.append(
            f"it has {planned.items} items in {planned.clusters} clusters, and the gate wants {MIN_ITEMS} in "
            f"{MIN_CLUSTERS}. Give it more items."
        )
    if settings.role == "target" and planned.standard_error > section.max_standard_error:
        needed = math.ceil(planned.items * (planned.standard_error / section.max_standard_error) ** 2)
        short.append(
            f"{planned.items} items of {sampling(section, settings).samples} samples leave a standard error of about "
            f"{planned.standard_error:.3f}, above evaluation.max_standard_error {section.max_standard_error}: "
            f"INCONCLUSIVE. Give it {needed:,} items, or raise samples_per_item."
        )
    if planned.guard >= section.guard_margin:
        short.append(
            f"{planned.clusters} clusters cannot hold a guard to evaluation.guard_margin {section.guard_margin}: with "
            f"no event at all its bound is {planned.guard:.3f}. Give it more items{_until(section)}, or raise the "
            "margin."
        )
    return short


def _until(section: Evaluation) -> str:
    """The fewest clusters whose zero-event bound lies below the guards' margin, in words."""
    if not 0 < section.guard_margin < 1:
        return ""
    fewest = math.ceil(math.log(section.alpha) / math.log1p(-section.guard_margin))
    fewest += zero_event_bound(fewest, section.alpha) >= section.guard_margin
    return f" until there are {max(MIN_CLUSTERS, fewest):,} clusters"
