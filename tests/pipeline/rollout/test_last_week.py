from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from pipeline.rollout.last_week import days_of, last_week, rated_alone, units_of

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
CALLS = [{"trace_id": "a", "observation_id": "a", "latency_s": 0.4}]


def week(rows: list[dict[str, Any]] = ROWS) -> list[Any]:
    return last_week(pa.Table.from_pylist(rows), pa.Table.from_pylist(CALLS))


def test_last_week_is_the_seven_days_up_to_the_newest() -> None:
    assert {each.unit for each in week()} == {"ada", "bob"}
    assert days_of(week()) == pytest.approx(5.0)


def test_an_answer_is_graded_by_its_reference_else_by_the_judge() -> None:
    assert [each.grade for each in week()] == ["right", "wrong", "wrong", "right", "wrong", "none"]


def test_where_nothing_else_grades_users_do() -> None:
    said = [label(name, "ada", timedelta(), "no_reference", None, each) for name, each in (("a", 0.75), ("b", 0.25))]
    silent = label("c", "bob", timedelta(), "no_reference")
    assert [each.grade for each in week([*said, silent])] == ["right", "wrong", "missing"]
    assert rated_alone(week([*said, silent])) and not rated_alone(week())
    assert [each.grade for each in week([silent])] == ["none"]
    assert [each.grade for each in week([*said, label("d", "bob", timedelta())])] == ["none", "none", "right"]


def test_a_request_has_the_latency_of_its_call() -> None:
    assert [each.latency_s for each in week()][:2] == [0.4, 0.0]


def test_users_add_up_what_they_did() -> None:
    ada, bob = units_of(week())
    assert (ada.requests, ada.graded, ada.correct) == (2, 2, 1)
    assert (bob.requests, bob.graded, bob.correct) == (4, 3, 1)


def test_a_day_is_the_least_that_a_plan_divides_by() -> None:
    assert days_of(week()[:1]) == 1.0
