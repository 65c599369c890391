import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.rollout.latency import Latencies, frozen_threshold

EDGES = tuple(float(edge) for edge in np.geomspace(0.01, 400, 220))


def histogram(seconds):
    counts = np.bincount(np.searchsorted(EDGES, seconds), minlength=len(EDGES))
    return Latencies(edges_s=EDGES, counts=tuple(float(count) for count in counts))


def test_threshold_takes_2000_requests():
    assert frozen_threshold(histogram(np.full(1999, 0.5)), 1.1) is None
    assert frozen_threshold(histogram(np.full(2000, 0.5)), 1.1) == pytest.approx(0.55, rel=0.1)


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


def test_no_threshold_where_the_last_bucket_has_no_end():
    assert frozen_threshold(Latencies(edges_s=(1.0, math.inf), counts=(1900.0, 100.0)), 1.1) is None
    assert frozen_threshold(Latencies(edges_s=(1.0, math.inf), counts=(1995.0, 5.0)), 1.1) is None
    assert frozen_threshold(Latencies(edges_s=(1.0, math.inf), counts=(1995.0, 5.0)), 1.0) == 1.0


counts = st.dictionaries(st.sampled_from([0.1, 0.5, 1.0, 2.0]), st.integers(0, 9).map(float), max_size=4)


def of(seen):
    return Latencies(edges_s=tuple(sorted(seen)), counts=tuple(seen[edge] for edge in sorted(seen)))


@given(counts, counts)
def test_latencies_add_up_over_the_edges_of_both(one, other):
    both = of(one).plus(of(other))
    assert not both.malformed()
    assert both == of(other).plus(of(one))
    for edge in both.edges_s:
        assert dict(zip(both.edges_s, both.counts, strict=True))[edge] == one.get(edge, 0) + other.get(edge, 0)


@pytest.mark.parametrize(
    ("edges", "seen"),
    [
        ((1.0,), ()),
        ((2.0, 1.0), (1.0, 1.0)),
        ((1.0, 1.0), (1.0, 1.0)),
        ((1.0,), (math.nan,)),
        ((1.0,), (-1.0,)),
        ((1.0,), (math.inf,)),
        ((math.nan,), (1.0,)),
        ((-1.0,), (1.0,)),
    ],
)
def test_what_is_no_histogram_is_seen(edges, seen):
    assert "no histogram" in Latencies(edges_s=edges, counts=seen).malformed()
