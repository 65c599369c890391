"""Last week's traffic for a plan, out of what the newest iteration labelled.

An answer is right as production's answers are graded: by its reference, else by a judge's 4 or 5; where neither graded
any, by what users said. Requests that failed, and users who gave no consent, are not in the labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from pipeline.rewards.verifiers.outcome import Outcome
from pipeline.rollout.evidence import UnitCounts
from pipeline.rollout.thumbs import LIKED

DAY_S = 86_400.0
WEEK_S = 7 * DAY_S
LABEL_COLUMNS = ("timestamp", "user_id", "outcome", "judge", "feedback")
GOOD = 0.75
"""A judge's 4, in [0, 1]."""
_CHECKED: Mapping[str, float] = {each.value: each.score for each in Outcome if each.score is not None}


class LastWeek(NamedTuple):
    """Each user's requests, the days that they cover (one at least), and whether users alone graded them."""

    users: list[UnitCounts]
    days: float
    by_feedback: bool


def last_week(labels: pa.Table) -> LastWeek:
    """The seven days up to the newest row. `labels` has LABEL_COLUMNS."""
    rows = labels.to_pylist()
    times = [row["timestamp"].timestamp() for row in rows]
    newest = max(times, default=0.0)
    rows = [row for row, at in zip(rows, times, strict=True) if newest - at < WEEK_S]
    by_feedback = all(_grade(row) is None for row in rows) and any(row["feedback"] is not None for row in rows)
    users: dict[str, UnitCounts] = {}
    for row in rows:
        before, is_right = users.get(row["user_id"], UnitCounts()), _liked(row) if by_feedback else _grade(row)
        users[row["user_id"]] = UnitCounts(
            requests=before.requests + 1,
            graded=before.graded + (is_right is not None),
            correct=before.correct + (is_right is True),
        )
    oldest = min((at for at in times if newest - at < WEEK_S), default=newest)
    return LastWeek(list(users.values()), max(1.0, (newest - oldest) / DAY_S), by_feedback)


def _grade(row: Mapping[str, Any]) -> bool | None:
    judged: float | None = row["judge"]
    score = _CHECKED.get(row["outcome"], judged)
    return None if score is None else score >= GOOD


def _liked(row: Mapping[str, Any]) -> bool | None:
    feedback: float | None = row["feedback"]
    return None if feedback is None else feedback > LIKED
