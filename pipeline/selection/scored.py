"""Prompts without a reference that GRPO can be forced on: their fresh samples differ in score.

A prompt whose samples are all worth the same has no gradient to begin with, whoever scores. Of the others those whose
scores spread most come first: they teach most a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import pvariance

from pipeline.selection.pairing import LabelledRow


def in_order_of_spread(groups: Mapping[str, Sequence[LabelledRow]]) -> dict[str, Sequence[LabelledRow]]:
    """The groups of such prompts, the largest variance of scores first, equal ones in order of their text."""
    spread = {prompt: _spread(group) for prompt, group in groups.items()}
    wanted = (prompt for prompt, variance in spread.items() if variance > 0)
    return {prompt: groups[prompt] for prompt in sorted(wanted, key=lambda prompt: (-spread[prompt], prompt))}


def _spread(group: Sequence[LabelledRow]) -> float:
    """Variance of the scores of a prompt's fresh samples; 0 where a reference could check them."""
    scores = [row.final_reward for row in group if row.fresh and row.final_reward is not None]
    if any(row.reference for row in group) or len(set(scores)) < 2:
        return 0.0
    return pvariance(scores)
