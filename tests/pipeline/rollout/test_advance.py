import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from pipeline.rollout.evidence import ArmSums, Basis, LiveEvidence, UnitCounts
from pipeline.rollout.rules import (
    LEVEL_Z,
    missing_sample,
    non_inferiority_failure,
    quality_drop,
    sample_size,
    stage_power,
    wanted_graded,
    wanted_requests,
)
from pipeline.rollout.shares import Ratio
from tests.pipeline.rollout.looks import BY_REQUEST, POLICY, arm, evidence, sums

SILENT = POLICY.model_copy(update={"gradable": False})
SET = POLICY.model_copy(update={"min_canary_requests": 50})
MEASURED = Basis(quality=0.7, design_effect=1.0)


@pytest.mark.parametrize(("weight", "answers"), [(5, 1518), (25, 1923)])
def test_sample_size_is_that_of_the_design(weight, answers):
    assert sample_size(0.7, 0.03, weight) == answers
    assert wanted_graded(LiveEvidence(basis=MEASURED), POLICY, weight) == answers
    twice = MEASURED.model_copy(update={"design_effect": 2.0})
    assert wanted_graded(LiveEvidence(basis=twice), POLICY, weight) == sample_size(0.7, 0.03, weight, 2.0) > answers


@given(st.floats(0.05, 0.95), st.floats(0.01, 0.2), st.integers(1, 95))
def test_sample_has_power_point_8_for_an_equal_canary(quality, margin, weight):
    answers = sample_size(quality, margin, weight)
    error = (quality * (1 - quality) * (1 / answers + weight / (100 - weight) / answers)) ** 0.5
    assert norm.cdf(margin / error - norm.ppf(0.95)) >= 0.7995


def test_a_stage_says_its_answers_and_power_before_it_begins():
    assert stage_power(POLICY, 0) == (1808, pytest.approx(0.8, abs=0.001))
    assert stage_power(SET, 0) == (50, pytest.approx(norm.cdf(0.03 / (0.25 / 50 / 0.95) ** 0.5 - LEVEL_Z)))


def test_sample_waits_until_its_clustering_is_measured():
    seen = evidence(arm(19_000), arm(1600), basis=Basis(quality=0.7))
    assert wanted_graded(seen, POLICY, 5) == 1601
    assert wanted_graded(seen.model_copy(update={"basis": MEASURED}), POLICY, 5) == 1518


def test_a_margin_of_nothing_is_refused_in_words():
    with pytest.raises(ValueError, match="max_quality_drop above 0"):
        wanted_graded(LiveEvidence(), POLICY.model_copy(update={"max_quality_drop": 0.0}), 5)
    with pytest.raises(ValueError, match="no number of answers"):
        wanted_graded(LiveEvidence(), POLICY, 100)


def test_what_is_awaited_is_graded_answers():
    seen = evidence(arm(19_000), arm(1600, graded=1517), basis=MEASURED)
    assert missing_sample(seen, POLICY, 5) == "1517 of 1518 graded canary answers"
    assert missing_sample(evidence(arm(19_000), arm(1600, graded=1518), basis=MEASURED), POLICY, 5) == ""
    few = evidence(arm(19_000, graded=29), arm(1600, graded=1518), basis=MEASURED)
    assert missing_sample(few, POLICY, 5) == "29 of 30 graded champion answers"


def test_where_nothing_can_be_graded_requests_are_awaited():
    calm = evidence(arm(19_000, graded=0), arm(600, graded=0))
    assert wanted_graded(calm, SILENT, 5) == 0
    assert wanted_requests(calm, SILENT, 5) == 645  # twice 1% of errors
    assert missing_sample(calm, SILENT, 5) == "600 of 645 canary requests"
    assert missing_sample(evidence(arm(19_000, graded=0), arm(645, graded=0)), SILENT, 5) == ""
    assert missing_sample(evidence(arm(29, graded=0), arm(645, graded=0)), SILENT, 5) == "29 of 30 champion requests"
    assert wanted_requests(calm, POLICY, 5) == 0
    limits = [SILENT.model_copy(update={"max_error_rate_ratio": limit}) for limit in (1.5, 1.0)]
    assert [wanted_requests(calm, policy, 5) for policy in limits] == [2577, 64405]
    assert wanted_requests(calm, SET.model_copy(update={"gradable": False}), 5) == 50


def test_a_champion_with_many_errors_takes_fewer_requests():
    shaky = evidence(arm(19_000, errors=1900, graded=0), arm(600, graded=0))
    assert wanted_requests(shaky, SILENT, 5) == pytest.approx(6.18 * 9 * (1 + 5 / 95), rel=0.02)
    few = [evidence(arm(requests, errors=15, graded=0), arm(600, graded=0)) for requests in (29, 30)]
    assert wanted_requests(few[0], SILENT, 5) == 645 > wanted_requests(few[1], SILENT, 5), "30 tell its rate"


def test_an_equal_canary_passes_and_a_worse_one_does_not():
    assert non_inferiority_failure(evidence(arm(28_842), arm(1518)), POLICY) == ""
    seen = non_inferiority_failure(evidence(arm(28_842), arm(1518, 0.67)), POLICY)
    assert "quality fell by 0.030 +- 0.020: not proven to be less than 0.03 with 1518" in seen


def test_a_margin_that_is_just_met_is_a_shortfall():
    seen = evidence(arm(28_842), arm(1518, 0.69))
    margin = quality_drop(seen) + LEVEL_Z * math.sqrt(seen.quality_variance("user"))
    assert non_inferiority_failure(seen, POLICY.model_copy(update={"max_quality_drop": margin}))
    assert not non_inferiority_failure(seen, POLICY.model_copy(update={"max_quality_drop": margin + 1e-9}))


@pytest.mark.parametrize("weight", [5, 25])
def test_advance_errs_as_often_as_it_says(weight):
    """At the margin 5% pass; an equal canary passes four times in five."""
    rng, answers, trials = np.random.default_rng(9), sample_size(0.7, 0.03, weight), 3000
    others = round(answers * (100 - weight) / weight)
    for quality, low, high in ((0.67, 0.038, 0.062), (0.7, 0.775, 0.825)):
        drawn = rng.binomial(others, 0.7, trials), rng.binomial(answers, quality, trials)
        passed = [
            not non_inferiority_failure(counted(others, a, answers, b), BY_REQUEST) for a, b in zip(*drawn, strict=True)
        ]
        assert low <= np.mean(passed) <= high


def counted(others, right, answers, canary_right):
    arms = Ratio(hits=float(right), trials=float(others)), Ratio(hits=float(canary_right), trials=float(answers))
    return LiveEvidence(champion=ArmSums(quality=arms[0]), canary=ArmSums(quality=arms[1]))


def test_users_who_differ_prove_less():
    rows = [UnitCounts(requests=15, graded=15, correct=15.0 * (number % 10 < 7)) for number in range(100)]
    assert non_inferiority_failure(evidence(arm(28_500), sums(rows)), BY_REQUEST) == ""
    assert "+- 0.0" in non_inferiority_failure(evidence(arm(28_500), sums(rows)), POLICY)


def test_fewer_than_20_users_need_a_larger_weight():
    seen = non_inferiority_failure(evidence(arm(28_500), arm(1500, users=19)), POLICY)
    assert "the canary has 19 users" in seen and "Give the stage a larger one" in seen
    assert non_inferiority_failure(evidence(arm(28_500), arm(1500, users=20)), POLICY) == ""
    assert "the champion has 19 users" in non_inferiority_failure(evidence(arm(1500, users=19), arm(28_500)), POLICY)


@pytest.mark.parametrize("name", ["champion", "canary"])
def test_nothing_graded_in_an_arm_is_a_shortfall(name):
    for graded, few in ((29, True), (30, False)):
        arms = {"champion": arm(1900), "canary": arm(1900), name: arm(1900, graded=graded)}
        assert (f"the {name} has 29 graded" in non_inferiority_failure(LiveEvidence(**arms), POLICY)) is few
        assert ("needed to compare" in non_inferiority_failure(LiveEvidence(**arms), POLICY)) is few
    assert non_inferiority_failure(LiveEvidence(**arms), SILENT) == ""


def test_errors_over_the_limit_fall_short_before_they_harm():
    more = evidence(arm(28_842, errors=288), arm(1518, errors=45))
    assert "errors went from 0.0100 to 0.0296, proven to be over 2 times" in non_inferiority_failure(more, SILENT)
    assert non_inferiority_failure(evidence(arm(28_842, errors=288), arm(1518, errors=35)), SILENT) == ""
    assert non_inferiority_failure(evidence(arm(28_842), arm(300, errors=9)), SILENT) == ""
    assert non_inferiority_failure(evidence(arm(28_842), arm(300, errors=10)), SILENT)


def test_slow_requests_are_a_shortfall_before_they_are_harm():
    calm = arm(28_842, timed=28_842, slow=200)
    slower = evidence(calm, arm(1518, timed=1518, slow=25), slow_over_s=2.0)
    assert "1.6% of the canary's requests took over 2 s" in non_inferiority_failure(slower, SILENT)
    assert non_inferiority_failure(evidence(calm, arm(1518, timed=1518, slow=18), slow_over_s=2.0), SILENT) == ""
    busy = arm(28_842, timed=28_842, slow=470)
    assert non_inferiority_failure(evidence(busy, arm(1518, timed=1518, slow=25), slow_over_s=2.0), SILENT) == ""
    assert non_inferiority_failure(evidence(calm, arm(300, timed=300, slow=9), slow_over_s=2.0), SILENT) == ""
