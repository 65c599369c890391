import math
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipeline.rollout.evidence import LiveEvidence, UnitCounts
from pipeline.rollout.plan import Traffic, last_week, plan, traffic_of
from pipeline.rollout.rules import wanted_requests
from tests.pipeline.rollout.looks import BY_REQUEST, POLICY

BUSY = Traffic(requests_per_day=50_000, users=10_000, graded_share=0.8, quality=0.7, icc=0.0, concentration=1e-4)
SILENT = POLICY.model_copy(update={"gradable": False})


def stages(traffic, policy=POLICY):
    return plan(policy, traffic)


def test_plan_lasts_as_long_as_dwell_or_sample():
    five, twenty_five, last = stages(BUSY)
    assert [stage.weight for stage in (five, twenty_five, last)] == [5, 25, 95]
    assert (five.graded, twenty_five.graded) == (1518, 1923)
    assert (five.days, twenty_five.days, last.days) == (1.0, 7.0, 1.0)
    slow = BUSY.model_copy(update={"requests_per_day": 5000.0})
    assert stages(slow)[0].days == pytest.approx(1518 / (5000 * 0.8 * 0.05))
    assert five.power == pytest.approx(0.8, abs=0.001)


def test_users_who_come_back_cost_answers_and_power():
    alike = BUSY.model_copy(update={"icc": 0.1})
    five = stages(alike)[0]
    assert five.graded == pytest.approx(1518 * (1 + 0.1 * 1e-4 / 0.05 * 1518), abs=1)
    assert five.power is not None and 0.7 < five.power < 0.8
    assert stages(alike, BY_REQUEST)[0].graded == 1518


def test_where_nothing_is_graded_quality_is_not_judged():
    ungraded = BUSY.model_copy(update={"graded_share": 0.0})
    assert stages(ungraded)[0].days == math.inf
    without = stages(ungraded, SILENT)[0]
    assert without.power is None and without.graded == 0
    assert without.days == max(1.0, wanted_requests(LiveEvidence(), SILENT, 5) / 0.05 / 50_000)


def test_a_margin_of_nothing_has_no_plan():
    with pytest.raises(ValueError, match="Set it above 0"):
        plan(POLICY.model_copy(update={"max_quality_drop": 0.0}), BUSY)


def test_traffic_is_measured_from_users():
    rng = np.random.default_rng(2)
    right = rng.beta(0.7 * 4, 0.3 * 4, 1500)  # ICC 1 / 5
    users = [UnitCounts(requests=20, graded=16, correct=float(rng.binomial(16, q))) for q in right]
    seen = traffic_of([*users, UnitCounts()], 7.0)
    assert seen.requests_per_day == pytest.approx(1500 * 20 / 7)
    assert (seen.users, seen.graded_share) == (1500, 0.8)
    assert seen.quality == pytest.approx(0.7, abs=0.02)
    assert seen.icc == pytest.approx(0.2, abs=0.03)
    assert seen.concentration == pytest.approx(1 / 1500, rel=0.1)


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
