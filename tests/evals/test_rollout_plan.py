"""How long a rollout takes, as `pt validate` says."""

import re

import pytest

from evals.rollout_plan import DAY_S, plan_lines, policy_in_time, stage_plans
from pipeline.recipe import Rollout
from pipeline.rollout.policy import policy_of

POLICY = policy_of(Rollout())


def test_later_stages_take_no_proof_of_their_own():
    first, second, last = stage_plans(POLICY, 8_000.0)
    assert (first.answers, first.seconds / DAY_S) == (4916, pytest.approx(4916 / 400))
    assert (second.answers, second.seconds) == (371, 7 * DAY_S), "a standard error of the margin"
    assert (last.answers, last.seconds) == (5556, DAY_S)
    silent = policy_of(Rollout(), gradable=False)
    assert [plan.answers for plan in stage_plans(silent, 8_000.0)] == [645, 816, 12_237], "requests"


@pytest.mark.parametrize("a_day", [8_000.0, 3_000.0, 1_000.0, 110.0, 5.0])
def test_a_policy_is_proposed_that_ends_before_a_person_is_asked(a_day):
    proposed = policy_in_time(POLICY, a_day)
    assert (proposed is POLICY) is (a_day == 8_000.0)
    for plan, dwell_s in zip(stage_plans(proposed, a_day), proposed.dwell_s, strict=True):
        assert plan.seconds <= dwell_s + 30 * DAY_S and plan.in_time
    assert len(proposed.weights) == len(proposed.dwell_s)
    assert (proposed.max_quality_drop == 0.03) is (a_day >= 1_000.0), "weights come before the margin"


def test_lines_say_what_is_shown_and_how_long_it_takes():
    text = "\n".join(plan_lines(POLICY, 110.0))
    assert "rollout: shows that no canary is worse by 3 points; 9 days at least" in text
    assert "rollout at 5%: 19 of 20 equal canaries pass by 4,916 graded canary answers in 894 days" in text
    assert re.search(
        r"rollout: warning: 960 days with 110 requests a day; .* rollout\.weights=\[50, 100\] rollout\.", text
    )
    assert list(plan_lines(POLICY, 8_000.0))[-1] == "rollout: 20 days with 8,000 requests a day"
    unknown = list(plan_lines(policy_of(Rollout(max_wait_s=None), gradable=False), None))
    assert unknown[0] == "rollout: shows no quality; 9 days at least" and unknown[1].endswith("by 645 requests")
