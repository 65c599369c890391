"""`pt evals plan RECIPE`: what the recipe's gate could show and what it costs, as a page of text.

Owns how a plan looks, and where its variances come from: an earlier bundle, or the assumption of power.py. Refuses to
compute (power.py) and to ask a model anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from evals import bundle, power
from evals.power import AnswerCost, GatePlan, SuitePlan, Variance
from evals.suites import Suite, suites
from pipeline.recipe import Evaluation, Recipe
from pipeline.storage import Store

HEADINGS = (
    "suite",
    "role",
    "items",
    "clusters",
    "samples",
    "b",
    "w",
    "error",
    "gain",
    "margin",
    "holds",
    "power",
    "rare",
)
LEGEND = """\
b, w     variance of the difference between items, and of one sample within an item
error    standard error of the difference, in points of 100
gain     improvement that is shown with a power of 0.8
margin   loss of the score that the recipe bears
holds    smallest margin that a candidate without loss is shown to keep, with this guard's share of the power
power    chance that a candidate without loss keeps the recipe's margin
rare     upper bound of a defect that no answer has: no margin below it can be held"""


class EarlierRun(NamedTuple):
    """What an earlier bundle says of the suites that it shares with the recipe, by name."""

    variances: dict[str, Variance]
    tokens: float
    """Mean tokens of an answer."""


def earlier_run(path: Path) -> EarlierRun:
    """Raises ValueError where the bundle is not whole."""
    evidence = bundle.read(path)
    samples = [
        sample for each in evidence.suites for arm in each.arms for item in arm.results for sample in item.samples
    ]
    return EarlierRun(
        {each.suite.name: power.variance_of(each.suite, each.arms) for each in evidence.suites},
        sum(sample.tokens for sample in samples) / max(len(samples), 1),
    )


def plan_page(recipe: Recipe, earlier: EarlierRun | None, answer: AnswerCost, item_cost: float) -> tuple[str, bool]:
    """The plan of the recipe's gate, and whether a candidate could pass it. `answer.tokens` 0: as the bundle has it,
    else the recipe's limit.

    Raises ValueError, saying what to do, where a suite cannot be read.
    """
    section = recipe.evaluation
    asked = suites(Store(recipe.data_root), section)
    planned = power.plan(asked, section, earlier.variances if earlier else {})
    items = {each.name: len(each.items) for each in asked}
    reasons = [*power.obstacles(planned, section), *power.judged_obstacles(items, section)]
    shown = [
        f"{recipe.name}: improvement at level {section.improvement_alpha():.4g} ({_luck(section)}), guards at "
        f"{section.alpha:.4g}",
        "",
        *_table([HEADINGS, *(_row(each) for each in planned.suites)]),
        "",
        LEGEND,
        "",
        *_judged(section, items),
        *_guards(planned),
        *_origins(asked, earlier),
        *_costs(planned, answer, earlier, section),
        *_samples(planned, item_cost),
        *(f"No candidate could pass: {reason}" for reason in reasons),
    ]
    return "\n".join(shown) + "\n", not reasons


def _judged(section: Evaluation, items: Mapping[str, int]) -> list[str]:
    """What each judged suite could show."""
    shown: list[str] = []
    for each in section.judged:
        pairs = each.items or items[each.over]
        error = power.PREFERENCE_SPREAD / pairs**0.5
        shown.append(
            f"{each.name} ({each.role}): {pairs:,} pairs of answers to {each.over}, each judged twice; the win rate at "
            f"equal lengths has a standard error of about {100 * error:.2f} points"
        )
    return [*shown, ""] if shown else []


def _luck(section: Evaluation) -> str:
    if section.luck_per_year is None:
        return "luck_per_year is null: luck adds up over the gates of a year"
    return f"luck_per_year {section.luck_per_year:g} over {section.gates_per_year} gates"


def _row(planned: SuitePlan) -> tuple[str, ...]:
    return (
        planned.name,
        planned.role,
        f"{planned.items:,}",
        f"{planned.clusters:,}",
        str(planned.samples),
        f"{planned.variance.between:.3f}",
        f"{planned.variance.within:.3f}",
        f"{100 * planned.standard_error:.2f}",
        *(
            "-" if each is None else f"{each:.1%}"
            for each in (planned.gain, planned.margin, planned.holds, planned.power)
        ),
        f"{planned.rare:.1%}",
    )


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Two columns of names, then numbers that end where their heading ends."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned = [
        [
            cell.ljust(width) if place < 2 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in rows
    ]
    return ["  ".join(row).rstrip() for row in aligned]


def _origins(asked: Sequence[Suite], earlier: EarlierRun | None) -> list[str]:
    assumed = [each.name for each in asked if earlier is None or each.name not in earlier.variances]
    return [
        f"The variances of {', '.join(assumed)} are assumed, not measured: give --bundle once there is an evaluation."
    ] if assumed else []  # fmt: skip


def _guards(planned: GatePlan) -> list[str]:
    shown = [f"{planned.guards} guards must be shown to hold."]
    if any(each.power is not None for each in planned.suites):
        shown.append(
            f"A candidate without loss keeps the margins of all scores that guard in {planned.power:.1%} of gates."
        )
    return shown


def _costs(planned: GatePlan, answer: AnswerCost, earlier: EarlierRun | None, section: Evaluation) -> list[str]:
    tokens, origin = answer.tokens, "as given"
    if not tokens:
        tokens, origin = section.max_completion_tokens, "the recipe's limit: give --answer-tokens"
        if earlier is not None:
            tokens, origin = earlier.tokens, "as in the bundle"
    shown = [f"An answer has {tokens:,.0f} tokens ({origin}); those of the prompts are not counted."]
    for name, arms in (("first gate, both models", 2), ("later gates, the candidate alone", 1)):
        priced = power.cost(planned, answer._replace(tokens=tokens), arms)
        parts = [f"{priced.answers:,} answers", f"{priced.tokens:,.0f} tokens"]
        parts += [] if priced.hours is None else [f"{priced.hours:,.2f} hours"]
        parts += [] if priced.usd is None else [f"{priced.usd:,.2f} USD"]
        shown.append(f"  {name}: {', '.join(parts)}")
    return shown if answer.tokens_per_s else [*shown, "  give --tokens-per-second and --usd-per-hour for hours and USD"]


def _samples(planned: GatePlan, item_cost: float) -> list[str]:
    if item_cost == 0:
        return ["Where items cost nothing, more items show more than more samples of each."]
    best = {each.name: power.best_samples(each.variance, item_cost) for each in planned.suites}
    chosen = ", ".join(f"{name} {count or 'as many as can be paid'}" for name, count in best.items())
    return [f"Samples of each item that show most where an item costs as much as {item_cost:g} answers: {chosen}"]
