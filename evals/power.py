"""Whether a gate over a recipe's suites could pass any candidate. The standard error of the paired difference is
sqrt((b + w/k)/n): variance between items and within one, k samples of n items (arXiv 2411.00640)."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from evals.comparison import MIN_CLUSTERS, MIN_ITEMS, level_problems
from evals.runner import sampling
from evals.statistics import zero_event_bound
from evals.suites import Suite
from pipeline.core.chat_template import folder_template, support_of
from pipeline.recipe import Evaluation
from pipeline.recipe.suites import ItemsSuite, SuiteSection

PREFERENCE_SPREAD = 0.47
"""Standard error of a win rate at equal lengths, times the root of its pairs (simulated: .44 to .49)."""


class Variance(NamedTuple):
    """Of the difference of two models' pass rates: between items, and of one sample within an item."""

    between: float
    within: float


UNKNOWN_MODEL = Variance(between=0.10, within=0.30)
"""For a first gate: an assumption on the safe side for a chat model."""
EMBEDDED_MODEL = Variance(between=0.003, within=0.319)
"""Measured on the embedded model over its own suite."""


def shortfalls(suites: Sequence[Suite], section: Evaluation, variance: Variance) -> list[str]:
    """Why a gate over these suites could not pass any candidate: a sentence each, with what to do. Empty: it could.

    Suites whose role is report stand in no candidate's way.
    """
    if levels := level_problems(section):
        return [f"evaluation.{why}, and no level of a test. Set it above, such as to 0.05." for why in levels]
    short: list[str] = []
    for suite in suites:
        settings = section.suite(suite.name)
        if settings.role != "report":
            short += [f"suite {suite.name}: {why}" for why in _shortfalls(suite, settings, section, variance)]
    return short + _judged_shortfalls({each.name: len(each.items) for each in suites}, section)


def _judged_shortfalls(items: dict[str, int], section: Evaluation) -> list[str]:
    """The same of the judged suites; `items` of the others by name."""
    short: list[str] = []
    for settings in section.judged:
        if settings.role == "report" or settings.over not in items:  # not frozen yet
            continue
        pairs, available = settings.items or items[settings.over], items[settings.over]
        error = PREFERENCE_SPREAD / math.sqrt(max(pairs, 1))
        if pairs > available:
            short.append(
                f"suite {settings.name}: it judges {pairs} items, and {settings.over} has {available}. Lower it."
            )
        if pairs < MIN_ITEMS:
            short.append(
                f"suite {settings.name}: it has {pairs} pairs, and the gate wants {MIN_ITEMS}. Judge more items."
            )
        elif settings.role == "target" and error > section.max_standard_error:
            needed = math.ceil((PREFERENCE_SPREAD / section.max_standard_error) ** 2)
            short.append(
                f"suite {settings.name}: {pairs} pairs leave a standard error of about {error:.3f}, above "
                f"evaluation.max_standard_error {section.max_standard_error}: INCONCLUSIVE. Judge {needed:,} items."
            )
    return short


def _shortfalls(suite: Suite, settings: SuiteSection, section: Evaluation, variance: Variance) -> list[str]:
    more, items, clusters = _more_items(settings, section), len(suite.items), suite.clusters
    short: list[str] = []
    if items < MIN_ITEMS or clusters < MIN_CLUSTERS:
        short.append(
            f"it has {items} items in {clusters} clusters, and the gate wants {MIN_ITEMS} in {MIN_CLUSTERS}. {more}."
        )
    samples = sampling(section, settings).samples
    error = math.sqrt((variance.between + variance.within / samples) / max(items, 1))
    if settings.role == "target" and error > section.max_standard_error:
        needed = math.ceil(items * (error / section.max_standard_error) ** 2)
        short.append(
            f"{items} items of {samples} samples leave a standard error of about {error:.3f}, above "
            f"evaluation.max_standard_error {section.max_standard_error}: INCONCLUSIVE. {more}, to {needed:,}, or "
            "raise samples_per_item."
        )
    rare = zero_event_bound(max(clusters, 1), section.alpha)
    if rare >= section.guard_margin:
        short.append(
            f"{clusters} clusters cannot hold a guard to evaluation.guard_margin {section.guard_margin}: with no event "
            f"at all its bound is {rare:.3f}. {more}{_until(section)}, or raise the margin."
        )
    if settings.floor == 1:
        short.append("its floor is 1, and no number of answers proves that none is wrong. Lower it.")
    return short


def _more_items(settings: SuiteSection, section: Evaluation) -> str:
    """What to change for more items, by the recipe's field."""
    field = f"evaluation.suites.{[each.name for each in section.suites].index(settings.name)}"
    if isinstance(settings, ItemsSuite) and settings.items is not None:
        return f"Raise {field}.items"
    return f"Give {field} {'a file of ' if getattr(settings, 'path', '') else ''}more items"


def _until(section: Evaluation) -> str:
    """The fewest clusters whose zero-event bound lies below the guards' margin, in words."""
    if not 0 < section.guard_margin < 1:
        return ""
    fewest = math.ceil(math.log(section.alpha) / math.log1p(-section.guard_margin))
    fewest += zero_event_bound(fewest, section.alpha) >= section.guard_margin
    return f" until there are {max(MIN_CLUSTERS, fewest):,} clusters"


def template_refusals(suites: Sequence[Suite], folder: str) -> list[str]:
    """A line for each suite with items of which the chat template in a model's directory leaves something out."""
    template = folder_template(Path(folder)) if Path(folder).is_dir() else None
    if template is None:
        return []
    refusals: list[str] = []
    for suite in suites:
        lacking = support_of(template).lacking([suite.messages(item) for item in suite.items])
        if lacking:
            counted = ", ".join(f"{what} ({count:,} of {len(suite.items):,} items)" for what, count in lacking.items())
            refusals.append(
                f"the suite {suite.name} cannot be asked: the chat template of {folder} leaves out {counted}. Save the "
                "tokenizer with a template that renders them, or leave the suite out."
            )
    return refusals
