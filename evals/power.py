"""What the suites of a recipe can show, planned before anything is paid for: the gate's limits, turned into items.

Owns the plan of a gate without a verdict. Refuses to judge one (gate.py). The standard error of the paired difference
is sqrt((b + w/k)/n): b and w are the variance of the difference between items and of one sample within one, k the
samples of each of n items (arXiv 2411.00640, section 5). A gain of z(1-alpha) + z(power) standard errors is shown with
that power; a margin of as many can be held by a candidate without any loss. All m guards of a gate must hold, so each
is planned for 0.8 ** (1/m), as if they were independent: five of 0.8 each would let a third of the harmless through.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from evals.comparable import MIN_CLUSTERS, MIN_ITEMS
from evals.gate import GUARD_POWER
from evals.judged_evidence import guards_rate
from evals.languages import prompt_languages
from evals.results import EvalArm
from evals.runner import sampling
from evals.statistics import Array, cluster_sums, mean_and_standard_error, normal_quantile, zero_event_bound
from evals.suites import Suite
from pipeline.recipe import Evaluation
from pipeline.recipe.suites import EmbeddedSuite, FileSuite, Role, SuiteSection

DEFECT_GUARDS = 4
"""Guards of every gating suite that must be shown to hold: no answer, truncated, refusal, length."""

IMPROVING = ("target", "confirm")
"""Roles of suites whose score must improve."""

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


class SuitePlan(NamedTuple):
    """What a gate over one suite would be able to show."""

    name: str
    role: Role
    items: int
    clusters: int
    samples: int
    variance: Variance
    standard_error: float
    gain: float | None
    """Of a target that must improve: the gain that is shown with a power of 0.8; of a target and the suite that
    confirms it, with the root of that each."""
    margin: float | None
    """Where the score guards: the registered margin."""
    holds: float | None
    """Where the score guards: the smallest margin that a candidate without loss is shown to keep, with this guard's
    share of the power."""
    power: float | None
    """Where the score guards: the chance that a candidate without loss keeps the registered margin."""
    rare: float
    """The upper bound of a defect of which neither model shows one: no margin below it can be held."""


class GatePlan(NamedTuple):
    suites: tuple[SuitePlan, ...]
    guards: int
    """Guards that must be shown to hold; each needs a power of 0.8 ** (1 / guards)."""
    power: float
    """The chance that a candidate without loss keeps the margins of all scores that guard, taken as independent."""


class AnswerCost(NamedTuple):
    """What an answer costs; None: not known."""

    tokens: float
    tokens_per_s: float | None = None
    usd_per_hour: float | None = None


class GateCost(NamedTuple):
    answers: int
    tokens: float
    hours: float | None
    usd: float | None


def plan(suites: Sequence[Suite], section: Evaluation, variances: Mapping[str, Variance]) -> GatePlan:
    """The power of the recipe's evaluation over these suites; `variances` by their names, else `UNKNOWN_MODEL`."""
    sections = [section.suite(each.name) for each in suites]
    gating = [each for each in sections if each.role in ("target", "guard")]
    guards = sum(DEFECT_GUARDS + _guards_score(each, section) for each in gating)
    names = {each.name for each in gating}
    guards += sum(_partial_guards(each) for each in suites if each.name in names)
    guards += sum(guards_rate(each, section) for each in section.judged)
    share = GUARD_POWER ** (1 / max(guards, 1))
    planned = tuple(_planned(each, section, variances.get(each.name, UNKNOWN_MODEL), share) for each in suites)
    return GatePlan(planned, guards, math.prod(each.power for each in planned if each.power is not None))


def shortfalls(suites: Sequence[Suite], section: Evaluation, variance: Variance) -> list[str]:
    """Why a gate over these suites could not pass any candidate: a sentence each, with what to do. Empty: it could."""
    planned = plan(suites, section, {each.name: variance for each in suites})
    return [*obstacles(planned, section), *judged_obstacles({each.name: len(each.items) for each in suites}, section)]


def judged_obstacles(items: Mapping[str, int], section: Evaluation) -> list[str]:
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


def obstacles(planned: GatePlan, section: Evaluation) -> list[str]:
    """The same of a plan. Suites whose role is report stand in no candidate's way."""
    if not 0 < section.alpha < 0.5:
        return [f"evaluation.alpha is {section.alpha}, and no level of a test. Set it between 0 and 0.5, such as 0.05."]
    if section.luck_per_year == 0:
        return ["evaluation.luck_per_year is 0, and no test is free of luck. Set it above 0, such as 0.05."]
    short: list[str] = []
    if section.improve == "cost" and section.cheaper_by == 1:
        short.append("evaluation.cheaper_by is 1, and no answer saves all of its tokens. Lower it.")
    gating = [each for each in planned.suites if each.role != "report"]
    return short + [f"suite {each.name}: {why}" for each in gating for why in _shortfalls(each, section)]


def measured(gains: Array, clusters: Sequence[str]) -> Variance:
    """The variances that an evaluation showed: `gains` is (items, k), candidate minus champion of each sample (of one
    seed), `clusters` names each item's. Items of a cluster that succeed and fail together are in the first.

    One sample an item cannot tell the two apart: all is then taken to lie between items, where more samples don't help.
    """
    items, k = gains.shape
    sizes = cluster_sums(np.full(items, float(k)), clusters)
    error = float(mean_and_standard_error(cluster_sums(gains.sum(axis=1), clusters), sizes)[1])
    within = float(gains.var(axis=1, ddof=1).mean()) if k > 1 else 0.0
    return Variance(max(0.0, items * error**2 - within / k), within)


def variance_of(suite: Suite, arms: tuple[EvalArm, EvalArm]) -> Variance:
    """The same of two finished runs, champion first. Raises ValueError where they are not over the same samples."""
    before, after = ({each.id: each.samples for each in arm.results} for arm in arms)
    shapes = {len(samples) for results in (before, after) for samples in results.values()}
    ids = [item.id for item in suite.items]
    if before.keys() != after.keys() or before.keys() != set(ids) or len(shapes) != 1 or len(ids) < 2:
        raise ValueError(
            f"The runs over {suite.name} are not over the same samples. Take a bundle that has a comparison."
        )
    gains = [
        [(new.outcome.score == 1) - (old.outcome.score != 0) for old, new in zip(before[id], after[id], strict=True)]
        for id in ids
    ]
    return measured(np.array(gains, dtype=np.float64), [item.cluster for item in suite.items])


def best_samples(variance: Variance, item_cost: float) -> int | None:
    """Samples of each item that show most for the money, where an item costs as much as `item_cost` answers (to write,
    to have reviewed): sqrt(item_cost * w / b). 1 where items are free; None where only samples count."""
    if item_cost == 0:
        return 1
    return None if variance.between == 0 else max(1, round(math.sqrt(item_cost * variance.within / variance.between)))


def cost(planned: GatePlan, answer: AnswerCost, arms: int) -> GateCost:
    """Of asking `arms` models: 2 at the first gate, then 1, because the champion's answers are in the journal."""
    answers = arms * sum(each.items * each.samples for each in planned.suites)
    tokens = answers * answer.tokens
    hours = tokens / answer.tokens_per_s / 3600 if answer.tokens_per_s else None
    usd = hours * answer.usd_per_hour if hours is not None and answer.usd_per_hour is not None else None
    return GateCost(answers, tokens, hours, usd)


def _planned(suite: Suite, section: Evaluation, variance: Variance, share: float) -> SuitePlan:
    settings = section.suite(suite.name)
    samples = sampling(section, settings).samples
    error = math.sqrt((variance.between + variance.within / samples) / max(len(suite.items), 1))
    improves, guards = settings.role in IMPROVING and section.improve != "cost", _guards_score(settings, section)
    alpha = section.target_alpha(settings, [each.name for each in section.asked if each.confirms])
    power = GUARD_POWER if alpha == section.improvement_alpha() else math.sqrt(GUARD_POWER)
    level = normal_quantile(1 - section.alpha)
    return SuitePlan(
        name=suite.name,
        role=settings.role,
        items=len(suite.items),
        clusters=suite.clusters,
        samples=samples,
        variance=variance,
        standard_error=error,
        gain=_reach(alpha, power) * error if improves else None,
        margin=settings.margin if guards else None,
        holds=_reach(section.alpha, share) * error if guards else None,
        power=_normal(settings.margin / error - level) if guards and error > 0 else None,
        rare=zero_event_bound(max(suite.clusters, 1), section.alpha),
    )


def _partial_guards(suite: Suite) -> int:
    """Guards that a suite has for its items: of their form, and of their languages where these are several."""
    return any(item.format for item in suite.items) + (len(prompt_languages(suite)) > 1)


def _guards_score(settings: SuiteSection, section: Evaluation) -> bool:
    """Whether the gate holds the loss of this suite's score to a margin (evals/comparison.py)."""
    return settings.role == "guard" or (settings.role == "target" and section.improve != "all")


def _shortfalls(planned: SuitePlan, section: Evaluation) -> list[str]:
    settings = section.suite(planned.name)
    more = _more_items(settings, section)
    short: list[str] = []
    if planned.items < MIN_ITEMS or planned.clusters < MIN_CLUSTERS:
        short.append(
            f"it has {planned.items} items in {planned.clusters} clusters, and the gate wants {MIN_ITEMS} in "
            f"{MIN_CLUSTERS}. {more}."
        )
    if planned.role in IMPROVING and planned.standard_error > section.max_standard_error:
        needed = math.ceil(planned.items * (planned.standard_error / section.max_standard_error) ** 2)
        short.append(
            f"{planned.items} items of {planned.samples} samples leave a standard error of about "
            f"{planned.standard_error:.3f}, above evaluation.max_standard_error {section.max_standard_error}: "
            f"INCONCLUSIVE. {more}, to {needed:,}, or raise samples_per_item."
        )
    if planned.rare >= section.guard_margin:
        short.append(
            f"{planned.clusters} clusters cannot hold a guard to evaluation.guard_margin {section.guard_margin}: with "
            f"no event at all its bound is {planned.rare:.3f}. {more}{_until(section)}, or raise the margin."
        )
    if settings.floor == 1:
        short.append("its floor is 1, and no number of answers proves that none is wrong. Lower it.")
    return short


def _more_items(settings: SuiteSection, section: Evaluation) -> str:
    """What to change for more items, by the recipe's field."""
    field = f"evaluation.suites.{[each.name for each in section.suites].index(settings.name)}"
    if isinstance(settings, EmbeddedSuite) or (isinstance(settings, FileSuite) and settings.items is not None):
        return f"Raise {field}.items"
    return f"Give {field} a file of more items" if isinstance(settings, FileSuite) else f"Give {field} more items"


def _until(section: Evaluation) -> str:
    """The fewest clusters whose zero-event bound lies below the guards' margin, in words."""
    if not 0 < section.guard_margin < 1:
        return ""
    fewest = math.ceil(math.log(section.alpha) / math.log1p(-section.guard_margin))
    fewest += zero_event_bound(fewest, section.alpha) >= section.guard_margin
    return f" until there are {max(MIN_CLUSTERS, fewest):,} clusters"


def _reach(alpha: float, power: float) -> float:
    """Standard errors between what is shown at level `alpha` and what is shown with this power."""
    return normal_quantile(1 - alpha) + normal_quantile(power)


def _normal(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))
