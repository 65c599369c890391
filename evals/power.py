"""Whether a gate over a recipe's suites could pass any candidate. The standard error of the paired difference is
sqrt((b + w/k)/n): variance between items and within one, k samples of n items (arXiv 2411.00640)."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from jinja2 import TemplateError

from evals.comparison import MIN_CLUSTERS, MIN_ITEMS, level_problems
from evals.runner import sampling
from evals.statistics import zero_event_bound
from evals.suites import Suite
from pipeline.core.model_files import context_of
from pipeline.models.rendering import folder_template, lacking, rendered
from pipeline.recipe import Evaluation, Recipe
from pipeline.recipe.suites import JudgedSuite, SuiteSection


class Variance(NamedTuple):
    """Of the difference of two models' pass rates: between items, and of one sample within an item."""

    between: float
    within: float


UNKNOWN_MODEL = Variance(between=0.10, within=0.30)
"""For a first gate: an assumption on the safe side for a chat model."""
EMBEDDED_MODEL = Variance(between=0.003, within=0.319)
"""Measured on the embedded model over its own suite."""
PREFERENCES = Variance(between=0.47**2, within=0.0)
"""Of a win rate at equal lengths, between pairs (simulated: .44 to .49 squared)."""


def shortfalls(suites: Sequence[Suite], section: Evaluation, variance: Variance) -> list[str]:
    """Why a gate over these suites could not pass any candidate: a sentence each, with what to do. Empty: it could.

    Suites whose role is report stand in no candidate's way.
    """
    if levels := level_problems(section):
        return [f"evaluation.{why}, and no level of a test. Set it to 0.05." for why in levels]
    short: list[tuple[str, str]] = []
    for suite in suites:
        settings = section.suite(suite.name)
        if settings.role != "report":
            of = variance, sampling(section, settings).samples
            short += [(suite.name, why) for why in _too_few(len(suite.items), suite.clusters, *of, settings, section)]
            short += [(suite.name, why) for why in _unprovable(suite.clusters, settings, section)]
    items = {each.name: len(each.items) for each in suites}
    for judged in section.judged:
        if judged.role != "report" and (there := items.get(judged.over)) is not None:  # None: not frozen yet
            pairs = judged.items or there
            if pairs > there:
                short.append((judged.name, f"it judges {pairs} items. Set its items to {there}, as {judged.over} has."))
            short += [(judged.name, why) for why in _too_few(pairs, pairs, PREFERENCES, 1, judged, section)]
    return [f"suite {name}: {why}" for name, why in short]


def _too_few(
    items: int,
    clusters: int,
    variance: Variance,
    samples: int,
    settings: SuiteSection | JudgedSuite,
    section: Evaluation,
) -> Iterator[str]:
    if items < MIN_ITEMS or clusters < MIN_CLUSTERS:
        yield f"it has {items} items in {clusters} clusters, and the gate wants {MIN_ITEMS} in {MIN_CLUSTERS}."
    spread, most = math.sqrt(variance.between + variance.within / samples), section.max_standard_error
    error = spread / math.sqrt(max(items, 1))
    if settings.role == "target" and error > most:
        needed, room = math.ceil((spread / most) ** 2), items * most**2 - variance.between
        several = f", or set its samples_per_item to {math.ceil(variance.within / room)}" if room > 0 else ""
        yield (
            f"{items} items leave a standard error of about {error:.3f}, above evaluation.max_standard_error {most}: "
            f"INCONCLUSIVE. Take {needed:,} items{several}."
        )


def _unprovable(clusters: int, settings: SuiteSection, section: Evaluation) -> Iterator[str]:
    rare, margin = zero_event_bound(max(clusters, 1), section.alpha), section.guard_margin
    if rare >= margin:
        fewest = math.ceil(math.log(section.alpha) / math.log1p(-margin)) if 0 < margin < 1 else 0
        yield (
            f"{clusters} clusters cannot hold a guard to evaluation.guard_margin {margin}: with no event at all its "
            f"bound is {rare:.3f}. Add items until there are about {fewest:,} clusters, or raise "
            "evaluation.guard_margin."
        )
    if settings.floor == 1:
        yield "its floor is 1, and no number of answers proves that none is wrong. Lower it."


def model_refusals(suites: Sequence[Suite], section: Evaluation, folder: str) -> list[str]:
    """Why the model in a directory, or one trained on top of it, cannot be asked these suites: a line each."""
    refusals = template_refusals(suites, folder)
    context = getattr(section.serving, "max_model_len", 0) or context_of(Path(folder))
    for suite in suites:
        limit = sampling(section, section.suite(suite.name)).max_completion_tokens
        if context and limit >= context:
            refusals.append(
                f"the suite {suite.name} cannot be asked: an answer may take {limit:,} tokens, and the context of "
                f"{folder} is {context:,}. Lower the suite's max_completion_tokens."
            )
    return refusals


def template_refusals(suites: Sequence[Suite], folder: str) -> list[str]:
    """A line for each suite with items of which the chat template in a model's directory leaves something out."""
    template = folder_template(Path(folder)) if Path(folder).is_dir() else None
    if template is None:
        return []
    refusals: list[str] = []
    for suite in suites:
        absent = lacking(template, [suite.messages(item) for item in suite.items])
        if absent:
            counted = ", ".join(f"{what} ({count:,} of {len(suite.items):,} items)" for what, count in absent.items())
            refusals.append(
                f"the suite {suite.name} cannot be asked: the chat template of {folder} leaves out or refuses "
                f"{counted}. Set base_model.chat so that it renders them, or leave the suite out."
            )
            continue
        try:
            for item in suite.items:
                rendered(template, suite.messages(item))
        except (TemplateError, ValueError, TypeError, KeyError) as error:
            why = " ".join(str(error).split())[:200]
            refusals.append(
                f"the suite {suite.name} cannot be asked: the chat template does not take its messages ({why}). Leave "
                "out system, or save the tokenizer with a template that takes the roles of its items."
            )
    return refusals


def judge_refusals(recipe: Recipe, is_answered: bool) -> list[str]:
    """Why judged suites that gate would have no verdict. `is_answered`: the judge has an address."""
    gating = [each.name for each in recipe.evaluation.judged if each.role != "report"]
    if not gating:
        return []
    targets = [each.name for each in recipe.evaluation.judged if each.role == "target"]
    teacher, judge, rewards = recipe.rewards.judge, recipe.gate_judge, recipe.rewards
    is_taught = any(weights.judge > 0 for weights in (rewards.rated, rewards.judged, rewards.fresh))
    same = teacher and judge and (teacher.model, teacher.digest) == (judge.model, judge.digest)
    if targets and same and is_taught:
        return [
            f"the suite {targets[0]} is judged by the model whose scores are trained on: it would say how well its "
            "taste was learnt, not whether answers are better. Set evaluation.judge to {model: NAME, digest: DIGEST} "
            "of another one."
        ]
    if judge is None:
        return [
            f"the suite {gating[0]} is judged, and the recipe has no judge. Set rewards.judge to {{model: NAME, "
            "digest: DIGEST}."
        ]
    if not is_answered:
        return [f"the suite {gating[0]} is judged, and no endpoint of the judge is set: set JUDGE_URL."]
    return []
