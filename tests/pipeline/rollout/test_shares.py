import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pipeline.rollout.shares import Latencies, Ratio, enough, frozen_threshold, proven, ratio, variance


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


@pytest.mark.parametrize("unit", ["user", "request"])
def test_a_share_of_nothing_has_no_variance(unit):
    assert variance(Ratio(), unit) == math.inf
    assert ratio(np.zeros(3), np.zeros(3)) == Ratio()


def test_enough_wants_users_where_users_are_the_unit():
    few = Ratio(hits=70, trials=100, units=19)
    assert not enough(few, "user", 30)
    assert enough(few, "request", 30)
    assert enough(few.model_copy(update={"units": 20}), "user", 30)
    assert not enough(few, "request", 101)


def test_a_fair_walk_is_rarely_proven_at_any_look():
    rng = np.random.default_rng(3)
    steps = np.arange(1, 301)
    means = rng.standard_normal((1000, 300)).cumsum(axis=1) / steps
    alarms = [any(proven(mean, 1 / n, 0.05, 0.1) for mean, n in zip(walk, steps, strict=True)) for walk in means]
    assert np.mean(alarms) <= 0.05 + 1.65 * math.sqrt(0.05 * 0.95 / 1000)


def test_a_walk_that_drifts_is_proven():
    assert proven(0.1, 0.01**2, 0.05, 0.1)
    assert not proven(0.1, 0.05**2, 0.05, 0.1)
    assert not proven(-0.1, 0.01**2, 0.05, 0.1)


@pytest.mark.parametrize("variance", [0.0, math.inf, math.nan, -1.0])
def test_nothing_is_proven_without_a_variance(variance):
    assert not proven(1.0, variance, 0.05, 0.1)


EDGES = tuple(float(edge) for edge in np.geomspace(0.01, 400, 220))


def histogram(seconds):
    counts = np.bincount(np.searchsorted(EDGES, seconds), minlength=len(EDGES))
    return Latencies(edges_s=EDGES, counts=tuple(float(count) for count in counts))


def test_threshold_lies_over_the_limit_times_the_true_p99():
    """19 times in 20: an equal canary has at most 1% over it."""
    rng, true_p99 = np.random.default_rng(4), math.exp(2.3263)
    over = [frozen_threshold(histogram(rng.lognormal(size=2000)), 1.1) >= 1.1 * true_p99 for _ in range(300)]
    assert np.mean(over) >= 0.93
    far = [frozen_threshold(histogram(rng.lognormal(size=2000)), 1.1) for _ in range(50)]
    assert np.median(far) <= 1.1 * true_p99 * 1.4


def test_threshold_is_an_edge_where_one_is_high_enough():
    coarse = Latencies(edges_s=(1.0, 2.0, 5.0), counts=(1900.0, 100.0, 0.0))
    assert frozen_threshold(coarse, 1.1) == 5.0
    assert frozen_threshold(coarse, 1.0) == 2.0
    assert frozen_threshold(coarse, 3.0) == 6.0


counts = st.dictionaries(st.sampled_from([0.1, 0.5, 1.0, 2.0]), st.integers(0, 9).map(float), max_size=4)


def of(seen):
    return Latencies(edges_s=tuple(sorted(seen)), counts=tuple(seen[edge] for edge in sorted(seen)))


@given(counts, counts)
def test_latencies_add_up_over_the_edges_of_both(one, other):
    both = of(one).plus(of(other))
    assert both == of(other).plus(of(one))
    for edge in both.edges_s:
        assert dict(zip(both.edges_s, both.counts, strict=True))[edge] == one.get(edge, 0) + other.get(edge, 0)
