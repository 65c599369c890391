import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pipeline.rollout.shares import Ratio, enough, ratio, variance


def jackknife(hits, trials):
    """The variance of a share, by leaving out one user after the other."""
    shares = [(hits.sum() - h) / (trials.sum() - t) for h, t in zip(hits, trials, strict=True)]
    return (len(shares) - 1) / len(shares) * sum((each - hits.sum() / trials.sum()) ** 2 for each in shares)


counted = st.integers(2, 30).flatmap(
    lambda n: st.tuples(arrays(float, n, elements=st.integers(1, 50)), arrays(float, n, elements=st.floats(0, 1)))
)


@given(counted)
def test_variance_is_the_jackknifes_where_it_is_larger(drawn):
    trials, shares = drawn
    hits = np.floor(trials * shares)
    seen = ratio(hits, trials)
    assert seen.share == pytest.approx(hits.sum() / trials.sum())
    assert variance(seen, "user") >= variance(seen, "request")
    leaving_out = jackknife(hits, trials)
    assume(leaving_out > variance(seen, "request"))
    assert variance(seen, "user") == pytest.approx(leaving_out, rel=1e-6)


def test_variance_of_equal_users_is_c_over_c_minus_1():
    hits, trials = np.array([0.0, 10.0, 3.0, 1.0]), np.full(4, 10.0)
    residuals = ((hits - 3.5) ** 2).sum()
    assert variance(ratio(hits, trials), "user") == pytest.approx(4 / 3 * residuals / 40**2)


def test_users_who_are_alike_leave_the_variance_of_requests():
    alike = ratio(np.full(50, 7.0), np.full(50, 10.0))
    assert variance(alike, "user") == variance(alike, "request") == pytest.approx(351 / 502 * 151 / 502 / 500)


def test_users_who_differ_have_more_variance_than_requests():
    apart = ratio(np.repeat([10.0, 0.0], 25), np.full(50, 10.0))
    assert variance(apart, "user") / variance(apart, "request") == pytest.approx(10 * 50 / 49, rel=0.01)


def test_one_user_with_half_of_the_requests_is_not_half_certain():
    """A residual as it is hides half of what that user differs by: the share follows the user."""
    rest = ratio(np.array([90.0, *np.full(30, 2.0)]), np.array([90.0, *np.full(30, 3.0)]))
    hidden = (90 - 90 * 150 / 180) ** 2 * 31 / 30 / 180**2
    assert variance(rest, "user") > 3.5 * hidden


@pytest.mark.parametrize("unit", ["user", "request"])
def test_a_share_of_nothing_has_no_variance(unit):
    assert variance(Ratio(), unit) == math.inf
    assert ratio(np.zeros(3), np.zeros(3)) == Ratio()


def test_one_user_has_no_variance_between_users():
    alone = ratio(np.array([7.0]), np.array([10.0]))
    assert variance(alone, "user") == math.inf
    assert variance(alone, "request") < 1


def test_a_share_of_one_is_not_certain():
    assert variance(ratio(np.full(30, 1.0), np.full(30, 1.0)), "user") > 0


def test_users_without_a_trial_are_no_units():
    assert ratio(np.array([1.0, 0.0]), np.array([2.0, 0.0])).units == 1


def test_enough_wants_users_where_users_are_the_unit():
    few = Ratio(hits=70, trials=100, units=19)
    assert not enough(few, "user", 30)
    assert enough(few, "request", 30)
    assert enough(few.model_copy(update={"units": 20}), "user", 30)
    assert not enough(few, "request", 101)


def test_what_came_after_keeps_the_spread_of_all():
    users = ratio(np.repeat([10.0, 0.0], 25), np.full(50, 10.0))
    later = users.minus(Ratio(hits=100, trials=250, units=30, squares=1.0))
    assert (later.hits, later.trials, later.units) == (150, 250, 50)
    assert variance(later, "user") == pytest.approx(2 * variance(users, "user"))
