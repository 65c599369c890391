"""Last week's traffic as a plan and the A/A test want it, out of what the newest iteration governed and labelled.

An answer is right as production's answers are graded: by its reference, else by a judge's 4 or 5; where neither graded
any, by what users said. Refuses to see what the gates did not admit: requests that failed, and users who gave no
consent, are in neither table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa

from pipeline.rewards.verifiers.outcome import Outcome
from pipeline.rollout.aa import ServedRequest
from pipeline.rollout.evidence import UnitCounts
from pipeline.rollout.thumbs import LIKED

HOUR_S = 3_600.0
WEEK_S = 7 * 86_400.0
LOOKS = 168
"""That a week is cut into: one an hour."""
LABEL_COLUMNS = ("trace_id", "observation_id", "timestamp", "user_id", "outcome", "judge", "feedback")
CALL_COLUMNS = ("trace_id", "observation_id", "latency_s")
GOOD = 0.75
"""A judge's 4, in [0, 1]."""
_CHECKED: Mapping[str, float] = {each.value: each.score for each in Outcome if each.score is not None}


def last_week(labels: pa.Table, calls: pa.Table) -> list[ServedRequest]:
    """The requests of the seven days up to the newest. `labels` has LABEL_COLUMNS, `calls` CALL_COLUMNS."""
    seconds = {(row["trace_id"], row["observation_id"]): row["latency_s"] for row in calls.to_pylist()}
    rows = labels.to_pylist()
    newest = max((row["timestamp"].timestamp() for row in rows), default=0.0)
    rows = [row for row in rows if newest - row["timestamp"].timestamp() < WEEK_S]
    by_thumbs = all(_grade(row) == "none" for row in rows) and any(row["feedback"] is not None for row in rows)
    return [
        ServedRequest(
            unit=row["user_id"],
            at=row["timestamp"].timestamp(),
            latency_s=seconds.get((row["trace_id"], row["observation_id"])) or 0.0,
            grade=_rated(row) if by_thumbs else _grade(row),
        )
        for row in rows
    ]


def rated_alone(requests: Iterable[ServedRequest]) -> bool:
    """Whether what users said is all that graded them."""
    return any(each.grade == "missing" for each in requests)


def units_of(requests: Iterable[ServedRequest]) -> list[UnitCounts]:
    """What each user did."""
    units: dict[str, UnitCounts] = {}
    for each in requests:
        before = units.get(each.unit, UnitCounts())
        right = each.grade == "right"
        units[each.unit] = before.model_copy(
            update={
                "requests": before.requests + 1,
                "graded": before.graded + (right or each.grade == "wrong"),
                "correct": before.correct + right,
            }
        )
    return list(units.values())


def days_of(requests: Sequence[ServedRequest]) -> float:
    """Days that the requests cover, one at the least."""
    return max(1.0, (max(each.at for each in requests) - min(each.at for each in requests)) / 86_400)


def busiest_per_s(requests: Iterable[ServedRequest]) -> float:
    """Requests a second of the busiest hour of the clock; 0 without requests."""
    hours = Counter(int(each.at // HOUR_S) for each in requests)
    return max(hours.values(), default=0) / HOUR_S


def _grade(row: Mapping[str, Any]) -> Literal["right", "wrong", "none"]:
    judged: float | None = row["judge"]
    score = _CHECKED.get(row["outcome"], judged)
    return "none" if score is None else "right" if score >= GOOD else "wrong"


def _rated(row: Mapping[str, Any]) -> Literal["right", "wrong", "missing"]:
    feedback: float | None = row["feedback"]
    return "missing" if feedback is None else "right" if feedback > LIKED else "wrong"
