"""The rules of a rollout on simulated users who come back, as the benchmark draws them."""

from statistics import median

import numpy as np
import pytest

from benchmarks.rollout import Trial, advance, prove
from benchmarks.rollout_world import Model, World, activity

STICKY = World(400, 0.3, heavy=True)


def test_no_user_has_more_than_2_percent_of_a_heavy_world():
    shares = activity(STICKY, np.random.default_rng(0))
    assert shares.sum() == pytest.approx(1.0)
    assert 0.015 < shares.max() < 0.021


@pytest.mark.slow
def test_a_drop_of_20_points_is_proven_within_10_looks():
    looks = [prove(Trial(World(2_000, 0.1), Model(0.5), 5, 48, seed)).harm for seed in range(30)]
    assert median(look or 49 for look in looks) <= 10


@pytest.mark.slow
def test_an_equal_canary_passes_more_often_than_a_worse_one():
    world = World(10_000, 0.1, requests=1_500)
    equal, worse = (
        sum(bool(advance(Trial(world, Model(quality), 25, 30, seed)).passed) for seed in range(40))
        for quality in (0.7, 0.67)
    )
    assert equal >= 24 and worse <= 6
