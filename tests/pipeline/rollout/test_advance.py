import numpy as np
import pytest

from pipeline.rollout.evidence import ArmSums, LiveEvidence, PooledDrop, UnitCounts
from pipeline.rollout.rules import ADVANCE_ALPHA, SURE_Z, harm, unproven, wanted_graded, wanted_requests
from pipeline.rollout.shares import Ratio, radius
from tests.pipeline.rollout.looks import BY_REQUEST, POLICY, arm, evidence, sums

SILENT = POLICY.model_copy(update={"gradable": False})
QUIET = SILENT.model_copy(update={"min_canary_requests": 300})
SET = POLICY.model_copy(update={"min_canary_requests": 50})
BEFORE = PooledDrop(weight=4000.0, total=0.0, squares=4000.0 * 0.21)
"""An equal canary's 4,000 concurrent answers in earlier stages."""


def passes(seen: LiveEvidence, policy=POLICY) -> bool:
    return not unproven(seen, policy, 5)


@pytest.mark.parametrize(("weight", "answers"), [(5, 4916), (25, 6226)])
def test_a_stage_says_before_it_begins_what_it_takes(weight, answers):
    """Half of the answers right, which is the least certain."""
    assert wanted_graded(LiveEvidence(), POLICY, weight) == answers
    assert wanted_graded(LiveEvidence(), SET, weight) == answers
    assert wanted_graded(LiveEvidence(), SILENT, weight) == 0


def test_what_was_seen_says_how_much_is_missing():
    seen = evidence(arm(19_000), arm(1000))
    alike = wanted_graded(seen, BY_REQUEST, 5)
    assert alike == pytest.approx(0.21 * (SURE_Z / 0.03) ** 2 / 0.95, rel=0.01)
    rows = [UnitCounts(requests=10, graded=10, correct=10.0 * (number % 10 < 7)) for number in range(100)]
    assert wanted_graded(evidence(arm(19_000), sums(rows)), POLICY, 5) > 8 * alike, "users who resemble themselves"
    later = seen.model_copy(update={"earlier": BEFORE})
    assert wanted_graded(later, BY_REQUEST, 5) == pytest.approx(0.21 / 0.03**2 / 0.95, rel=0.02), "its own error alone"
    assert wanted_graded(later, SET.model_copy(update={"unit": "request"}), 5) == 50


@pytest.mark.parametrize("weight", [5, 25])
@pytest.mark.parametrize(("loss", "low", "high"), [(0.0, 0.93, 1.0), (0.03, 0.0, 0.05), (0.05, 0.0, 0.01)])
def test_a_proof_errs_over_all_looks_as_it_says(weight, loss, low, high):
    """Looked at sixteen times up to what `wanted_graded` names."""
    rng, trials = np.random.default_rng(9), 250
    each = wanted_graded(evidence(arm(19_000), arm(1000)), BY_REQUEST, weight) // 16
    others, looks = round(each * (100 - weight) / weight), np.arange(1, 17)
    passed = 0
    for _ in range(trials):
        right, canary_right = (rng.binomial(n, q, 16).cumsum() for n, q in ((others, 0.7), (each, 0.7 - loss)))
        seen = zip(right, looks * others, canary_right, looks * each, strict=True)
        passed += any(passes(counted(*look), BY_REQUEST) for look in seen)
    assert low <= passed / trials <= high


def counted(right, trials, canary_right, answers):
    arms = (Ratio(hits=float(hits), trials=float(of)) for hits, of in ((right, trials), (canary_right, answers)))
    champion, canary = (ArmSums(quality=each, errors=Ratio(trials=each.trials)) for each in arms)
    return LiveEvidence(champion=champion, canary=canary)


def test_earlier_stages_prove_what_this_one_alone_cannot():
    seen = evidence(arm(19_000), arm(1000))
    assert "not proven to be less than 0.03 with 1000" in unproven(seen, POLICY, 5)
    assert passes(seen.model_copy(update={"earlier": BEFORE}))
    worse = BEFORE.model_copy(update={"total": 4000.0 * 0.03})
    assert not passes(seen.model_copy(update={"earlier": worse}))


def test_earlier_stages_hide_no_harm_of_this_one():
    """A fall that is over the margin at 5% in the stage alone, and one that is harm."""
    much = BEFORE.model_copy(update={"weight": 4e6, "squares": 4e6 * 0.21})
    seen = evidence(arm(19_000), arm(1000, 0.64)).model_copy(update={"earlier": much})
    assert seen.pooled("user").total / 4e6 < 0.001
    assert unproven(seen, POLICY, 5) == "quality fell by 0.060, proven to be over 0.03"
    assert passes(evidence(arm(19_000), arm(1000, 0.65)).model_copy(update={"earlier": much}))
    bad = evidence(arm(19_000), arm(1000, 0.5)).model_copy(update={"earlier": much})
    assert (found := harm(bad, POLICY)) is not None and found.kind == "quality"


def test_earlier_stages_do_not_replace_a_stages_own_answers():
    few = evidence(arm(19_000), arm(230)).model_copy(update={"earlier": BEFORE})
    assert "tell the fall of quality to 0.030, 0.03 needed" in unproven(few, POLICY, 5)
    assert passes(evidence(arm(19_000), arm(249)).model_copy(update={"earlier": BEFORE}))
    assert passes(few, SET), "a recipe's own number is taken as it is"


def test_what_is_awaited_is_graded_answers():
    assert unproven(evidence(arm(19_000), arm(1600, graded=49)), SET, 5) == "49 of 50 graded canary answers"
    assert unproven(evidence(arm(19_000), arm(1600, graded=29)), POLICY, 5) == "29 of 30 graded canary answers"
    few = evidence(arm(19_000, graded=29), arm(1600, graded=1518))
    assert unproven(few, POLICY, 5) == "29 of 30 graded champion answers"


def test_where_nothing_can_be_graded_requests_are_awaited():
    calm = evidence(arm(19_000, graded=0), arm(600, graded=0))
    assert wanted_graded(calm, SILENT, 5) == 0
    assert wanted_requests(calm, SILENT, 5) == 645  # twice 1% of errors
    assert unproven(calm, SILENT, 5) == "600 of 645 canary requests"
    assert unproven(evidence(arm(19_000, graded=0), arm(645, graded=0)), SILENT, 5) == ""
    assert unproven(evidence(arm(29, graded=0), arm(645, graded=0)), SILENT, 5) == "29 of 30 champion requests"
    assert wanted_requests(calm, POLICY, 5) == 0
    limits = [SILENT.model_copy(update={"max_error_rate_ratio": limit}) for limit in (1.5, 1.0)]
    assert [wanted_requests(calm, policy, 5) for policy in limits] == [2577, 64405]
    assert wanted_requests(calm, SET.model_copy(update={"gradable": False}), 5) == 50


def test_a_champion_with_many_errors_takes_fewer_requests():
    shaky = evidence(arm(19_000, errors=1900, graded=0), arm(600, graded=0))
    assert wanted_requests(shaky, SILENT, 5) == pytest.approx(6.18 * 9 * (1 + 5 / 95), rel=0.02)
    few = [evidence(arm(requests, errors=15, graded=0), arm(600, graded=0)) for requests in (29, 30)]
    assert wanted_requests(few[0], SILENT, 5) == 645 > wanted_requests(few[1], SILENT, 5), "30 tell its rate"


def test_a_margin_that_is_just_met_is_a_shortfall():
    seen = evidence(arm(28_842), arm(1518, 0.695))
    drop = seen.champion.quality.share - seen.canary.quality.share
    within = [drop + radius(seen.quality_variance("user"), ADVANCE_ALPHA, m) < m for m in MARGINS]
    assert [passes(seen, POLICY.model_copy(update={"max_quality_drop": m})) for m in MARGINS] == within
    assert set(within) == {True, False}


MARGINS = np.linspace(0.03, 0.06, 200).tolist()


def test_users_who_differ_prove_less():
    rows = [UnitCounts(requests=40, graded=40, correct=40.0 * (number % 10 < 7)) for number in range(100)]
    assert passes(evidence(arm(28_500), sums(rows)), BY_REQUEST)
    assert "tell the fall of quality to 0.04" in unproven(evidence(arm(28_500), sums(rows)), POLICY, 5)


def test_fewer_than_20_users_need_a_larger_weight():
    seen = unproven(evidence(arm(28_500), arm(4000, users=19)), POLICY, 5)
    assert "19 users with grades in the smaller arm" in seen and "Give it a larger weight" in seen
    assert passes(evidence(arm(28_500), arm(4000, users=20)))
    assert "19 users with grades" in unproven(evidence(arm(4000, users=19), arm(28_500)), POLICY, 5)


def test_errors_over_the_limit_fall_short_before_they_harm():
    more = evidence(arm(28_842, errors=288), arm(1518, errors=45))
    assert "errors went from 0.0100 to 0.0296, proven to be over 2 times" in unproven(more, SILENT, 5)
    assert unproven(evidence(arm(28_842, errors=288), arm(1518, errors=35)), SILENT, 5) == ""
    assert unproven(evidence(arm(28_842), arm(300, errors=9)), QUIET, 5) == ""
    assert unproven(evidence(arm(28_842), arm(300, errors=10)), QUIET, 5)


def test_slow_requests_are_a_shortfall_before_they_are_harm():
    calm = arm(28_842, timed=28_842, slow=200)
    slower = evidence(calm, arm(1518, timed=1518, slow=25), slow_over_s=2.0)
    assert "1.6% of the canary's requests took over 2 s" in unproven(slower, SILENT, 5)
    assert unproven(evidence(calm, arm(1518, timed=1518, slow=18), slow_over_s=2.0), SILENT, 5) == ""
    busy = arm(28_842, timed=28_842, slow=470)
    assert unproven(evidence(busy, arm(1518, timed=1518, slow=25), slow_over_s=2.0), SILENT, 5) == ""
    assert unproven(evidence(calm, arm(300, timed=300, slow=9), slow_over_s=2.0), QUIET, 5) == ""
