from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from pipeline.rollout.last_week import last_week

NEWEST = datetime(2026, 3, 9, 12, tzinfo=UTC)


def label(
    trace: str,
    user: str,
    before: timedelta,
    outcome: str = "correct",
    judge: float | None = None,
    feedback: float | None = None,
) -> dict[str, Any]:
    row = {"trace_id": trace, "observation_id": trace, "timestamp": NEWEST - before, "user_id": user}
    return {**row, "outcome": outcome, "judge": judge, "feedback": feedback}


ROWS = [
    label("a", "ada", timedelta()),
    label("b", "ada", timedelta(days=1), "wrong"),
    label("c", "bob", timedelta(days=2), "no_answer"),
    label("d", "bob", timedelta(days=3), "no_reference", 0.75),
    label("e", "bob", timedelta(days=4), "no_reference", 0.5),
    label("f", "bob", timedelta(days=5), "no_reference"),
    label("g", "eve", timedelta(days=7)),
]


def week(rows: list[dict[str, Any]] = ROWS) -> tuple[list[tuple[float, float, float]], float, bool]:
    users, days, by_feedback = last_week(pa.Table.from_pylist(rows))
    return [(each.requests, each.graded, each.correct) for each in users], days, by_feedback


def test_last_week_is_the_seven_days_up_to_the_newest() -> None:
    """Answers are graded by the reference, else by the judge; eve asked seven days before."""
    users, days, by_feedback = week()
    assert users == [(2, 2, 1), (4, 3, 1)] and not by_feedback
    assert days == pytest.approx(5.0)


def test_where_nothing_else_grades_users_do() -> None:
    said = [label(name, "ada", timedelta(), "no_reference", None, each) for name, each in (("a", 0.75), ("b", 0.25))]
    silent = label("c", "bob", timedelta(), "no_reference")
    assert week([*said, silent]) == ([(2, 2, 1), (1, 0, 0)], 1.0, True)
    assert week([silent]) == ([(1, 0, 0)], 1.0, False)
    assert week([*said, label("d", "bob", timedelta())]) == ([(2, 0, 0), (1, 1, 1)], 1.0, False)
