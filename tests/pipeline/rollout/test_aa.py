import math

import numpy as np
import pytest

from pipeline.rollout.aa import AACheck, Alarms, ServedRequest, aa
from pipeline.rollout.router import route
from tests.pipeline.rollout.looks import BY_REQUEST, POLICY, RASH

HOUR = 3600.0


def week(users, count, rng, quality=0.7, icc=0.1, failing=0.0, shift=0.0):
    """Requests of users who come back, over ten hours; `shift`: seconds that all of the fifth hour took longer."""
    right = rng.beta(quality * (1 - icc) / icc, (1 - quality) * (1 - icc) / icc, users)
    rows = []
    for number in range(count):
        user, at = int(rng.integers(users)), 10 * HOUR * number / count
        failed = bool(rng.random() < failing)
        grade = "none" if failed else "right" if rng.random() < right[user] else "wrong"
        late = shift if 4 * HOUR <= at < 5 * HOUR else 0.0
        rows.append(ServedRequest(f"u{user}", at, float(rng.lognormal()) + late, failed, grade))
    return rows


def test_the_rules_seldom_alarm_on_two_equal_arms():
    seen = aa(week(400, 6000, np.random.default_rng(1), failing=0.02, shift=20.0), POLICY, HOUR, salts=20)
    assert seen.passed and seen.looks == 10
    assert [row.weight for row in seen.weights] == [5, 25, 95]
    assert all(row.salts == 20 for row in seen.weights)


def test_an_outage_of_both_arms_is_named_in_the_table():
    rows = [each._replace(failed=each.at > 5 * HOUR) for each in week(400, 6000, np.random.default_rng(1))]
    seen = aa(rows, POLICY, HOUR, salts=5)
    assert not seen.passed
    assert {row.unavailable for row in seen.weights} == {5}
    assert seen.lines()[1].split()[1:] == ["100.0%", "0", "0", "0", "5", "0"]
    assert "more than alpha. Don't roll out" in seen.lines()[-1]


def test_rules_that_alarm_too_often_are_seen():
    """Users of whom some are always failed: at a level of .9 and by request that is harm."""
    rng = np.random.default_rng(3)
    rows = [
        ServedRequest(f"u{user}", 10 * HOUR * number / 6000, 1.0, failed=user < 12)
        for number, user in enumerate(int(each) for each in rng.integers(300, size=6000))
    ]
    by_user = aa(rows, RASH, HOUR, salts=10)
    assert sum(row.errors for row in by_user.weights) > 0
    assert not by_user.model_copy(update={"alpha": 0.001}).passed


def test_users_that_are_never_graded_are_no_difference():
    rows = [
        each._replace(grade="missing") if int(each.unit[1:]) % 7 == 0 else each
        for each in week(400, 6000, np.random.default_rng(4))
    ]
    assert sum(row.shares for row in aa(rows, POLICY, HOUR, salts=15).weights) == 0


def test_a_doubt_counts_as_an_alarm(monkeypatch):
    monkeypatch.setattr("pipeline.rollout.aa.doubt", lambda evidence, weight, policy: "users" * (weight == 25))
    seen = aa(week(400, 3000, np.random.default_rng(5)), POLICY, HOUR, salts=3)
    assert [(row.shares, row.any) for row in seen.weights if row.weight == 25] == [(3, 3)]
    assert not seen.passed


def test_passes_up_to_alpha():
    row = Alarms(weight=5, salts=200, any=10)
    assert AACheck(alpha=0.05, looks=1, weights=(row,)).passed
    assert not AACheck(alpha=0.05, looks=1, weights=(row, row.model_copy(update={"any": 11}))).passed


def test_nobody_to_split_is_refused():
    with pytest.raises(ValueError, match="Give last week's rows"):
        aa([], POLICY, HOUR)
    with pytest.raises(ValueError, match="nothing to split"):
        aa([ServedRequest("u", 0.0, 1.0)], POLICY, 0.0)
    with pytest.raises(ValueError, match="for sticky routers"):
        aa([ServedRequest("u", 0.0, 1.0)], BY_REQUEST, HOUR)


def test_users_are_split_as_the_router_splits_them():
    from pipeline.rollout.aa import _points
    from tests.pipeline.rollout.conftest import split_at

    users = [f"u{number}" for number in range(300)]
    split = split_at(25, rollout="aa-3")
    arms = ["canary" if point < 25 else "champion" for point in _points(users, "aa-3")]
    assert arms == [route(split, user) for user in users]
    assert not math.isclose(_points(users, "aa-3")[0], _points(users, "aa-4")[0])
