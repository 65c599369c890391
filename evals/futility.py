"""When to stop asking: a gate whose improvement test has become unlikely to pass needs no further answers.

Owns the order in which clusters are asked, the looks, and the chance that the final test passes given the answers so
far (conditional power at the design's effect: Lan, Simon and Halperin, Commun. Stat. 1982). Refuses to ask, to judge.
Stopping can only take a PASS away, so it spends no level, and the final test stays as it is whether or not
anyone looks (non-binding). Nothing stops early for success: every guard would have to be shown as early. What is known
at a stop is no estimate: the difference so far is there because it is low, so a stop carries none.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterable, Sequence
from typing import Literal

import numpy as np

from evals.comparable import MIN_CLUSTERS, problems
from evals.comparison import paired_gains
from evals.gate import GUARD_POWER
from evals.measurements import FutilityLook, FutilityStop
from evals.results import EvalArm
from evals.statistics import Array, mean_and_standard_error, normal_quantile, t_quantile
from evals.suites import Item, Suite
from pipeline.recipe import Evaluation
from pipeline.recipe.suites import LibrarySuite, SuiteSection

TargetSoFar = tuple[Suite, tuple[EvalArm, EvalArm]]
"""A target with the answers of both models so far, champion first."""

SHARES = (0.1, 0.2, 0.4, 0.6, 0.8)
"""Shares of the clusters after which the answers are looked at."""
STOP_BELOW = 0.1
"""Conditional power below which asking ends."""


def asking_order(clusters: Iterable[str], seed: int) -> tuple[str, ...]:
    """The names in a random order that `seed` and the names alone decide: every prefix is a fair sample."""
    names = sorted(set(clusters))
    random.Random(seed).shuffle(names)
    return tuple(names)


def looks(clusters: int) -> tuple[int, ...]:
    """After how many of so many clusters to look; not before there are enough to estimate a spread from."""
    return tuple(at for share in SHARES if MIN_CLUSTERS <= (at := math.ceil(share * clusters)) < clusters)


def stoppable(section: Evaluation, suites: Sequence[Suite]) -> list[Suite]:
    """The targets whose answers are looked at: those with checks, of our own runner, that no judge reads in pairs.

    Where any target may improve, the others' hope must end as well: then all targets have to be such, or none is.
    """
    if not section.futility or section.improve == "cost":
        return []
    over = {each.over for each in section.judged}
    chosen = [each for each in suites if not each.advisory and _can_stop(section.suite(each.name), over)]
    whole = {each.name for each in chosen} == {each.name for each in section.targets}
    return chosen if section.improve == "all" or whole else []


def _can_stop(settings: SuiteSection, over: Collection[str]) -> bool:
    return settings.role == "target" and not isinstance(settings, LibrarySuite) and settings.name not in over


def part(suite: Suite, look: int, seed: int) -> tuple[Item, ...]:
    """The items that are asked up to a look (1 is the first); empty where it is no look of this suite."""
    at = math.ceil(SHARES[look - 1] * suite.clusters)
    if at not in looks(suite.clusters):
        return ()
    first = set(asking_order((item.cluster for item in suite.items), seed)[:at])
    return tuple(item for item in suite.items if item.cluster in first)


def stopped(
    evidence: Sequence[TargetSoFar], section: Evaluation, confirming: Collection[str] = ()
) -> FutilityStop | None:
    """Whether these answers, and no others, end the evaluation: they are those of one look, and leave no hope.

    `confirming`: names of the suites that would be asked in a second step. The same function stops the asking and
    proves, of the evidence that is left, that it was right to.
    """
    if not evidence or len(stoppable(section, [suite for suite, _ in evidence])) < len(evidence):
        return None
    asked = [{result.id for result in arms[1].results} for _, arms in evidence]
    for look in range(1, len(SHARES) + 1):
        parts = [part(suite, look, section.seed) for suite, _ in evidence]
        if [{item.id for item in each} for each in parts] == asked:
            chances = [_look(*each, items, section, confirming) for each, items in zip(evidence, parts, strict=True)]
            looked = [each for each in chances if each is not None]
            if len(looked) == len(chances) and futile([each.power for each in looked], section.improve):
                return FutilityStop(look=look, of=len(SHARES), targets=tuple(looked))
    return None


def _look(
    suite: Suite,
    arms: tuple[EvalArm, EvalArm],
    items: tuple[Item, ...],
    section: Evaluation,
    confirming: Collection[str],
) -> FutilityLook | None:
    """None where these answers could not carry a FAIL: the whole evaluation would be INCONCLUSIVE."""
    settings = section.suite(suite.name)
    if not items or problems(suite, arms, section, settings, asked={item.id for item in items}):
        return None
    sums, sizes = paired_gains(items, arms)
    error = float(mean_and_standard_error(sums, sizes)[1])
    if error * math.sqrt(len(sizes) / suite.clusters) > section.max_standard_error:
        return None
    alpha = section.target_alpha(settings, confirming)
    effect = design_effect(sums, sizes, suite.clusters, alpha)
    power = float(conditional_power(sums, sizes, suite.clusters, effect, alpha)) if error > 0 or sums.any() else 1.0
    return FutilityLook(suite=suite.name, clusters=len(sizes), planned=suite.clusters, power=power)


def design_effect(sums: Array, sizes: Array, clusters: int, alpha: float) -> Array:
    """The difference that all `clusters` would show with a power of 0.8, by the spread so far. Shapes as below."""
    error = mean_and_standard_error(sums, sizes)[1] * math.sqrt(len(sizes) / clusters)
    return (normal_quantile(1 - alpha) + normal_quantile(GUARD_POWER)) * error


def conditional_power(sums: Array, sizes: Array, clusters: int, effect: Array | float, alpha: float) -> Array:
    """The chance that the lower one-sided 1 - alpha bound over all `clusters` lies above 0, given the first of them.

    `sums` is (..., c): candidate minus champion in samples of each cluster so far, of (c,) `sizes`. `effect` is the
    difference that the clusters to come are taken to have; their spread is that of the clusters so far. Shape (...).
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
