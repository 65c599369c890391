"""What the candidate must reach whatever the champion does: the floor of a score."""

from __future__ import annotations

from collections.abc import Iterator

from evals.measurements import Comparison
from pipeline.recipe.suites import SuiteSection


def limits(settings: SuiteSection, comparison: Comparison) -> Iterator[tuple[bool | None, str]]:
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
