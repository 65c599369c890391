import math

import numpy as np
import pytest

from pipeline.rollout.sequences import proven


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


def test_a_smaller_level_takes_more():
    assert proven(0.035, 0.01**2, 0.05, 0.1)
    assert not proven(0.035, 0.01**2, 0.001, 0.1)


@pytest.mark.parametrize("variance", [0.0, math.inf, math.nan, -1.0])
def test_nothing_is_proven_without_a_variance(variance):
    assert not proven(1.0, variance, 0.05, 0.1)
