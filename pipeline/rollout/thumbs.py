"""Grades by what users say, where neither a reference nor a judge grades: liked, not liked, or nobody said.

Few users say anything, and those who do differ from the others: an answer that nobody rated counts as one without a
grade, so that the share of rated answers is compared between the arms as every share of grades is . An answer
is waited for so long and no longer. Refuses to guess what the silent ones think.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from pipeline.core.storage import digest_json
from pipeline.recipe.rewards import Feedback
from pipeline.recipe.section import Operational, settings
from pipeline.rewards.records import Finding
from pipeline.rewards.samples import RewardSample
from pipeline.rollout.grading import UNGRADED, Grading, ServedAnswer
from pipeline.rollout.live_labels import user_scores

LIKED = 0.5
"""Mean of what was said of an answer, in [0, 1], above which it is a right one."""
UNRATED = Finding(None, "unrated")


def by_thumbs(feedback: Feedback, rated_within_s: float) -> Grading:
    """Of a gateway's answers, each with what was said of it."""

    def grade(answers: Sequence[ServedAnswer]) -> list[str]:
        rated = [rating(each.feedback, feedback) for each in answers]
        return [UNGRADED if each is None else "correct" if each > LIKED else "wrong" for each in rated]

    return Grading(grade, digest_json(["thumbs", settings(feedback, Operational)]), rated_within_s)


def thumbs(held: Sequence[RewardSample]) -> list[Finding]:
    """Of production's traces: a label in place of the composed reward. Needs feedback without a prior."""
    return [UNRATED if each.feedback.value is None else Finding(float(each.feedback.value > LIKED)) for each in held]


def rating(feedback: Sequence[Mapping[str, Any]], settings: Feedback) -> float | None:
    """Mean of what users said of an answer, or None where nobody did."""
    scores = user_scores(feedback, settings)
    return fmean(scores) if scores else None
