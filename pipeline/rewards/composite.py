"""`final_reward`: one number in [0, 1] from the components that apply, or null with a reason.

The rule. A completion with a reference answer is worth its correctness and its format; a logged completion with user
feedback also that feedback. Weights come from the recipe and are renormalised over the components that apply, so a
trace without feedback is not punished for it. When the check itself failed (time-out, error, unreadable reference)
the reward is null, whatever else is known: a label that failed is never 0. With neither reference nor feedback there
is no reward. The same function scores logged traces and fresh GRPO completions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pipeline.recipe import Rewards
from pipeline.rewards.verifiers import Grade, final_answer


class Reward(NamedTuple):
    """One composed reward; component values are None where they do not apply."""

    final_reward: float | None
    reason: str
    """'' for a label; else why there is none: `no_signal`, `timeout`, `error` or `unparsable_gold`."""
    correct: float | None
    format: float | None
    feedback: float | None


def compose(completion: str, grade: Grade | None, feedback: float | None, weights: Rewards) -> Reward:
    """Reward of one completion. `grade` is None without a reference; `feedback` is in [0, 1] or None."""
    if grade is not None and grade.outcome.score is None:
        return Reward(None, grade.outcome.value, None, None, feedback)
    correct = None if grade is None else grade.outcome.score
    well_formed = None if grade is None else float(final_answer(completion) is not None)
    parts = [(weights.correct, correct), (weights.format, well_formed), (weights.feedback, feedback)]
    applying = [(weight, value) for weight, value in parts if value is not None and weight > 0]
    total = sum(weight for weight, _ in applying)
    if total == 0:
        return Reward(None, "no_signal", correct, well_formed, feedback)
    final = sum(weight * value for weight, value in applying) / total
    return Reward(final, "", correct, well_formed, feedback)


def compose_all(
    completions: Sequence[str],
    grades: Sequence[Grade | None],
    feedback: Sequence[float | None],
    weights: Rewards,
) -> list[Reward]:
    """`compose` over equally long sequences; raises ValueError when their lengths differ."""
    rows = zip(completions, grades, feedback, strict=True)
    return [compose(completion, grade, thumbs, weights) for completion, grade, thumbs in rows]
