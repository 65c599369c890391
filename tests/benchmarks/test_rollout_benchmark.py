"""The rules of a rollout on simulated users who come back, as the benchmark draws them."""

from concurrent.futures import ThreadPoolExecutor
from statistics import median

import numpy as np
import pytest

from benchmarks.rollout import LIMIT, POLICY, Trial, advance, check, drawn, prove, watch
from benchmarks.rollout_machine import rollback
from benchmarks.rollout_world import Model, World, activity, watched
from pipeline.rollout.harm import harm

STICKY = World(400, 0.3, heavy=True)


def test_evidence_is_that_of_the_controllers_tallies():
    with ThreadPoolExecutor(1) as pool:
        assert check(True, pool)["tally_difference"] < 1e-6


def test_a_rollback_is_read_back_by_the_next_tick():
    with ThreadPoolExecutor(1) as pool:
        assert rollback(True, pool) == {"rollback_ticks": 1}


def test_no_user_has_more_than_2_percent_of_a_heavy_world():
    shares = activity(STICKY, np.random.default_rng(0))
    assert shares.sum() == pytest.approx(1.0)
    assert 0.015 < shares.max() < 0.021


@pytest.mark.variant
@pytest.mark.slow
def test_a_canary_at_every_limit_is_rarely_rolled_back_or_held():
    seen = [watch(Trial(STICKY, LIMIT, 5, 48, seed)) for seed in range(60)]
    assert sum(each.harm is not None for each in seen) <= 5
    assert sum(each.hold is not None for each in seen) <= 2


@pytest.mark.variant
@pytest.mark.slow
def test_requests_taken_for_independent_are_false_alarms():
    """What the variance between users is there for."""
    by_request = POLICY.model_copy(update={"unit": "request"})
    trials = [Trial(STICKY, LIMIT, 25, 48, seed) for seed in range(30)]
    alarms = [any(harm(each, by_request) for each in watched(drawn(trial), POLICY)) for trial in trials]
    assert sum(alarms) >= 4
    assert sum(watch(trial).harm is not None for trial in trials) <= 3


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
