import math

import numpy as np
import pytest

from pipeline.recipe import Rollout
from pipeline.rollout.policy import (
    Counts,
    LiveEvidence,
    LiveMetrics,
    harm,
    latency_evidence,
    policy_of,
    shortfall,
    skew,
    unusable,
)
from tests.pipeline.rollout.conftest import POLICY, arm


def first_harm(rng, drop, *, looks=48, canary=75, champion=1425, quality=0.7, errors=(0.01, 0.01)):
    """The look at which harm is proven, drawing each look's correct answers and errors; None if never."""
    evidence = LiveEvidence()
    for look in range(1, looks + 1):
        arms = [
            Counts(requests=n, graded=n, correct=int(rng.binomial(n, q)), errors=int(rng.binomial(n, e)))
            for n, q, e in ((champion, quality, errors[0]), (canary, quality - drop, errors[1]))
        ]
        evidence = LiveEvidence(champion=evidence.champion.plus(arms[0]), canary=evidence.canary.plus(arms[1]))
        if harm(evidence, POLICY):
            return look
    return None


@pytest.mark.parametrize("quality", [0.15, 0.7, 0.97])
@pytest.mark.parametrize(("canary", "champion"), [(75, 1425), (375, 1125)])
def test_false_alarms_stay_below_alpha_under_repeated_looks(quality, canary, champion):
    """The worst harmless canary: exactly the allowed drop and exactly twice the errors, looked at 48 times."""
    rng = np.random.default_rng(5)
    trials = 300
    drop = POLICY.max_quality_drop
    alarms = sum(
        first_harm(rng, drop, canary=canary, champion=champion, quality=quality, errors=(0.01, 0.02)) is not None
        for _ in range(trials)
    )
    assert alarms / trials <= POLICY.alpha + 1.65 * math.sqrt(POLICY.alpha * (1 - POLICY.alpha) / trials)


def test_drop_of_15_points_is_proven_within_a_few_looks():
    rng = np.random.default_rng(6)
    looks = [first_harm(rng, 0.15, looks=20) for _ in range(200)]
    assert sum(look is not None for look in looks) / len(looks) >= 0.95
    assert np.median([look for look in looks if look]) <= 8


def test_canary_at_100_percent_is_compared_with_the_stage_before():
    before = LiveEvidence(champion=arm(1000, 0.7), canary=arm(300, 0.7))
    full = before.fresh().plus(look(arm(0), arm(1500, 0.5)), POLICY)
    assert "quality fell" in harm(full, POLICY)
    assert not harm(before.fresh().plus(look(arm(0), arm(1500, 0.7)), POLICY), POLICY)
    assert "to compare with" in shortfall(LiveEvidence(canary=arm(100)), POLICY)


def test_errors_over_the_ratio_are_harm_and_few_are_not():
    assert "errors went" in harm(
        LiveEvidence(champion=arm(20_000, error_rate=0.01), canary=arm(1000, error_rate=0.08)), POLICY
    )
    rash = POLICY.model_copy(update={"alpha": 0.9})
    assert not harm(LiveEvidence(champion=arm(20_000), canary=arm(900, error_rate=0.01)), rash)
    assert not harm(LiveEvidence(champion=arm(20_000, 0.9), canary=arm(29, 0.0)), POLICY)


def test_ten_errors_are_evidence_of_harm_and_nine_are_not():
    rash = POLICY.model_copy(update={"alpha": 0.9})
    for requests, errors, harmful in ((100, 10, True), (90, 9, False)):
        canary = arm(requests).model_copy(update={"errors": float(errors)})
        assert bool(harm(LiveEvidence(champion=arm(20_000), canary=canary), rash)) is harmful


def test_thirty_graded_champion_requests_are_a_comparison():
    assert shortfall(LiveEvidence(champion=arm(30), canary=arm(30)), POLICY) == ""
    assert "29 graded requests" in shortfall(LiveEvidence(champion=arm(29), canary=arm(30)), POLICY)


def test_latency_is_harm_after_several_slow_looks():
    evidence, slow = LiveEvidence(), look(arm(1425), arm(75, p99=1.3))
    looks = 0
    while looks <= 10 and not harm(evidence, POLICY):
        evidence, looks = evidence.plus(slow, POLICY), looks + 1
    assert 5 <= looks <= 10
    assert "p99 latency" in harm(evidence, POLICY)
    assert "p99 latency" in shortfall(LiveEvidence(champion=arm(100), canary=arm(100), slow=2, brisk=1), POLICY)


def test_latency_bet_rarely_wins_on_a_coin_toss():
    rng = np.random.default_rng(7)
    slow = (rng.random((2000, 200)) < 0.5).cumsum(axis=1)
    brisk = np.arange(1, 201) - slow
    wealth = sum((1 + b) ** slow * (1 - b) ** brisk for b in (0.25, 0.5, 0.75, 0.95)) / 4
    assert latency_evidence(int(slow[0, 9]), int(brisk[0, 9])) == pytest.approx(wealth[0, 9])
    assert (wealth >= 3 / POLICY.alpha).any(axis=1).mean() <= POLICY.alpha / 3 + 0.006


def test_an_observed_share_that_contradicts_the_weight_is_seen():
    assert skew(LiveEvidence(champion=arm(9000), canary=arm(1000)), 5)
    assert not skew(LiveEvidence(champion=arm(9510), canary=arm(490)), 5)
    assert skew(LiveEvidence(champion=arm(1), canary=arm(1000)), 100)
    assert not skew(LiveEvidence(canary=arm(1000)), 100)


def look(champion, canary, start=0.0, end=400.0):
    return LiveMetrics(champion=champion, canary=canary, window_start=start, window_end=end)


NAN = float("nan")


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (None, "no metrics"),
        (look(arm(100).model_copy(update={"correct": NAN}), arm(100)), "champion counts make no sense"),
        (look(arm(100), arm(100).model_copy(update={"requests": NAN})), "canary counts make no sense"),
        (look(arm(100), arm(100).model_copy(update={"errors": math.inf})), "canary counts make no sense"),
        (look(arm(100), arm(100).model_copy(update={"correct": 101.0})), "canary counts make no sense"),
        (look(arm(100), arm(100, p99=NAN)), "canary latency is missing"),
        (look(arm(100), arm(100).model_copy(update={"latency_p99_s": None})), "canary latency is missing"),
        (look(arm(100), arm(0)), "no graded canary requests"),
        (look(arm(100), arm(100), end=500.1), "window 0.0 to 500.1 is empty or lies in the future"),
        (look(arm(100), arm(100), start=NAN), "window nan to 400.0 is empty or lies in the future"),
        (look(arm(100), arm(100), start=-1.0), "window starts at -1.0, inside what was counted"),
        (look(arm(100), arm(100), end=199.0), "metrics are 301 s old"),
        (look(arm(100), arm(100)), ""),
    ],
)
def test_what_a_look_must_be_to_count(seen, why):
    result = unusable(seen, 0.0, 500.0, POLICY)
    assert result.startswith(why) if why else result == ""


@pytest.mark.parametrize(
    "change",
    [
        {"weights": (5, 25)},
        {"weights": (100,), "dwell_s": (1.0,)},
        {"weights": (25, 5, 100)},
        {"dwell_s": (1.0,)},
        {"dwell_s": (1.0, NAN, 1.0)},
        {"alpha": 0.0},
    ],
)
def test_a_policy_that_leads_nowhere_is_refused(change):
    with pytest.raises(ValueError, match=r"Give|finite number"):
        policy_of(Rollout(**change))
