"""What the candidate must keep whatever the champion does: the floor of a score, and the budget of an answer."""

from __future__ import annotations

from collections.abc import Iterator

from evals.measurements import Comparison
from pipeline.recipe import Evaluation
from pipeline.recipe.suites import SuiteSection


def limits(settings: SuiteSection, comparison: Comparison, section: Evaluation) -> Iterator[tuple[bool | None, str]]:
    """Whether each limit of the suite is shown to be kept, or shown not to be, or neither (None); and the numbers."""
    if settings.floor is not None:
        score = comparison.candidate
        text = f"{score.value:.4f} (95% {score.low:.4f} to {score.high:.4f}), floor {settings.floor}"
        if score.low >= settings.floor:
            yield True, f"{settings.name}: floor reached: {text}"
        elif score.high < settings.floor:
            yield False, f"{settings.name}: floor not reached: {text}"
        else:
            yield None, f"{settings.name}: too little evidence for a floor: {text}: evaluate more items"
    budget, cost = section.max_usd_per_answer, comparison.cost
    if budget is not None and cost is not None:
        usd = cost.candidate
        text = f"{usd.value:.3g} USD an answer (95% {usd.low:.3g} to {usd.high:.3g}), budget {budget:.3g}"
        if usd.high <= budget:
            yield True, f"{settings.name}: budget kept: {text}"
        elif usd.low > budget:
            yield False, f"{settings.name}: budget not kept: {text}"
        else:
            yield None, f"{settings.name}: too little evidence for a budget: {text}: evaluate more items"
