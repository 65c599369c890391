import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pipeline.rollout.evidence import ArmLook, LiveEvidence, StageTally, UnitCounts, summed
from pipeline.rollout.shares import Latencies, Ratio, enough, frozen_threshold, proven, ratio, variance
from tests.pipeline.rollout.looks import POLICY, arm_look, look


def stage(looks, policy=POLICY, evidence=None):
    """The evidence after these looks, as the controller goes about it."""
    evidence, tally = evidence or LiveEvidence(), StageTally()
    for each in looks:
        tally = tally.plus(each, evidence.slow_over_s)
        evidence = summed(tally, evidence, policy)
    return evidence


unit_counts = st.builds(UnitCounts, requests=st.integers(0, 5).map(float), errors=st.integers(0, 5).map(float))
arms = st.dictionaries(st.sampled_from("uvwxyz"), unit_counts, max_size=4).map(lambda each: ArmLook(units=each))


@given(st.lists(st.tuples(arms, arms), max_size=6))
def test_sums_are_those_of_all_looks_by_user(drawn):
    seen = stage([look(champion, canary) for champion, canary in drawn])
    for name, index in (("champion", 0), ("canary", 1)):
        of_arm = [pair[index] for pair in drawn]
        requests, arm = sum(each.sum().requests for each in of_arm), getattr(seen, name)
        assert arm.requests == requests
        assert arm.users == len({key for each in of_arm for key, unit in each.units.items() if unit.requests})
        assert requests == 0 or arm.errors.hits == sum(each.sum().errors for each in of_arm)
    both = {key for pair in drawn for key in pair[0].units} & {key for pair in drawn for key in pair[1].units}
    assert seen.both == len(both)


def test_requests_are_silent_until_one_is_answered():
    dead = look(canary=arm_look("b", 5, 4.0, errors=4.0))
    assert stage([dead, dead]).silent == 40
    assert stage([look(), dead]).silent == 20
    assert stage([dead, look()]).silent == 0
    assert stage([dead, look(canary=ArmLook(units={}))]).silent == 20
    assert stage([dead, look(canary=arm_look("b", 5, 4.0, errors=3.0))]).silent == 0


def test_threshold_is_frozen_once_and_slow_counts_from_then():
    busy = look(champion=arm_look("a", 100, 10.0), canary=arm_look("b", slow=5.0))
    before = stage([busy])
    assert before.slow_over_s is None
    frozen = stage([busy, busy])
    assert frozen.slow_over_s == 2.0
    assert frozen.canary.slow.trials == 0
    after = stage([busy, busy, busy])
    assert (after.canary.slow.hits, after.canary.slow.trials, after.champion.slow.trials) == (50, 100, 1000)
    slower = busy.champion.model_copy(update={"latencies": Latencies(edges_s=(9.0,), counts=(9000.0,))})
    assert stage([busy, busy, look(slower)]).slow_over_s == 2.0


def test_grades_count_from_the_stages_first_request():
    late = look(start=100.0, end=160.0, graded_until=40.0)
    assert stage([late]).graded_until == 100.0
    assert stage([late, look(start=160.0, end=220.0, graded_until=130.0)]).graded_until == 130.0
    assert stage([late, look(start=160.0, end=220.0, graded_until=40.0)]).graded_until == 100.0


USERS = np.arange(80)
STAGES = (USERS < 20, USERS < 40)
"""The canary's users: half of those of the second stage were the champion's in the first."""


def answered(right, users, answers):
    counts = [UnitCounts(requests=answers, graded=answers, correct=each) for each in right[users].tolist()]
    return ArmLook(units=dict(zip(map(str, USERS[users].tolist()), counts, strict=True)))


def pooled_stages(right, answers=40):
    """Evidence of both stages, of users with so many right answers in each."""
    tally, evidence = StageTally(), LiveEvidence()
    for canary, each in zip(STAGES, right, strict=True):
        tally, evidence = tally.closed(), evidence.closed("user")
        tally = tally.plus(look(answered(each, ~canary, answers), answered(each, canary, answers)), None)
        evidence = summed(tally, evidence, POLICY)
    return evidence.pooled("user")


def test_pooled_stages_weigh_as_their_arms_had_at_once():
    chance = np.random.default_rng(3).beta(3.5, 1.5, len(USERS))
    right = np.random.default_rng(4).binomial(40, chance, (2, len(USERS)))
    pooled, weights = pooled_stages(right), (40 * 20 * 60 / 80, 40 * 40 * 40 / 80)

    def total(*without):
        kept = ~np.isin(USERS, without)
        drops = (r[~c & kept].mean() - r[c & kept].mean() for c, r in zip(STAGES, right / 40, strict=True))
        return sum(weight * drop for weight, drop in zip(weights, drops, strict=True))

    assert (pooled.weight, pooled.total) == (sum(weights), pytest.approx(total()))
    left_out = sum((total(user) - total()) ** 2 for user in USERS)
    assert pooled.squares == pytest.approx(left_out, rel=0.03), "users who come back, in the same arm or the other"
    alone = sum(pooled_stages([r, np.full(80, 20)]).squares for r in right)
    assert alone != pytest.approx(left_out, rel=0.2)


def test_an_unknown_variance_is_not_pooled():
    one = look(arm_look("a", 50), arm_look("b", 1))
    assert stage([one]).closed("user").earlier.weight == 0
    assert stage([one]).closed("request").earlier.weight > 0


def test_a_resumed_stage_keeps_evidence_and_settles_shares():
    held = stage([look(arm_look("u", 3), arm_look("u", 2))])
    resumed = held.resumed()
    assert resumed.at_resume == (held.champion, held.canary)
    assert resumed.both_at_resume == 2
    assert resumed.canary == held.canary
    again = stage([look()], evidence=resumed)
    assert again.at_resume == (held.champion, held.canary) and again.both_at_resume == 2


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
