import pytest

from pipeline.rollout.evidence import ArmLook, LiveEvidence, UnitCounts
from pipeline.rollout.rules import blind_spots, comparability_problem, judged_until, unusable
from pipeline.rollout.shares import Latencies
from tests.pipeline.rollout.looks import BY_REQUEST, POLICY, arm, arm_look, evidence, look

SILENT = POLICY.model_copy(update={"gradable": False})
RATED = POLICY.model_copy(update={"by_feedback": True})


@pytest.mark.parametrize("count", [float("nan"), float("inf"), -1.0])
def test_a_count_is_a_number(count):
    with pytest.raises(ValueError, match="requests"):
        UnitCounts(requests=count)


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (None, "no metrics"),
        (look(end=500.1), "window 0.0 to 500.1 is empty or lies in the future"),
        (look(start=61.0), "window 61.0 to 60.0 is empty"),
        (look(start=-1.0), "window starts at -1.0, inside what was counted"),
        (look(graded_until=61.0), "grades until 61.0 lie after the window's end"),
        (look(start=100.0, end=199.0), "metrics are 301 s old"),
    ],
)
def test_what_makes_a_look_unusable(seen, why):
    assert unusable(seen, 0.0, 500.0 if seen is None or seen.window_end > 90 else 60.0).startswith(why)


@pytest.mark.parametrize(
    "seen",
    [
        look(),
        look(canary=arm_look("b", graded=0.0, correct=0.0), graded_until=-100.0),
        look(canary=arm_look("b", errors=10.0, graded=0.0, correct=0.0).model_copy(update={"latencies": Latencies()})),
        look(canary=ArmLook(units={})),
        look(ArmLook(units={}), ArmLook(units={})),
        look(canary=arm_look("b", graded=12.0, correct=1.0)),
        look(start=60.0),
    ],
    ids=[
        "good", "nothing graded", "nothing answered", "no canary request", "both arms empty", "grades that come late",
        "short",
    ],
)  # fmt: skip
def test_a_look_counts_whatever_the_canary_did(seen):
    assert unusable(seen, 0.0, 60.0) == unusable(seen, 0.0, 360.0) == ""


def test_dwell_counts_by_the_slower_watermark():
    seen = look(end=60.0, graded_until=20.0)
    assert judged_until(seen, POLICY) == 20.0
    assert judged_until(seen, SILENT) == 60.0


def share(champion, canary, **more):
    """Arms with that many users, who all made ten requests."""
    return evidence(arm(10 * champion, users=champion), arm(10 * canary, users=canary), **more)


def test_the_share_of_the_traffic_is_one_of_users():
    assert "the canary got 1000 of 10000 users at 5%" in comparability_problem(share(9000, 1000), 5, POLICY)
    assert "users at 25%" in comparability_problem(share(9500, 500), 25, POLICY)
    for canary, doubted in ((406, True), (407, False), (593, False), (594, True)):
        assert bool(comparability_problem(share(10_000 - canary, canary), 5, POLICY)) is doubted
    assert "the canary got 9300 of 10000 users at 95%" in comparability_problem(share(700, 9300), 95, POLICY)
    assert "the canary got 1 of 10000 users at 0%" in comparability_problem(share(9999, 1), 0, POLICY)
    assert not comparability_problem(share(10000, 0), 0, POLICY)


def test_share_is_of_requests_where_they_are_the_unit():
    assert "1000 of 10000 requests" in comparability_problem(
        evidence(arm(9000, users=1), arm(1000, users=1)), 5, BY_REQUEST
    )
    assert not comparability_problem(evidence(arm(9510, users=1), arm(490, users=1)), 5, BY_REQUEST)


def test_a_user_in_both_arms_holds_at_once():
    assert "1 users were served by both arms" in comparability_problem(share(95, 5, both=1), 5, POLICY)


def test_what_a_person_settled_is_not_doubted_again():
    held = share(9000, 1000, both=2, slow_over_s=1.0)
    assert comparability_problem(held, 5, POLICY)
    resumed = held.resumed()
    assert not comparability_problem(resumed, 5, POLICY)
    right = share(9000 + 950, 1000 + 50, both=2).model_copy(
        update={"at_resume": resumed.at_resume, "both_at_resume": 2}
    )
    assert not comparability_problem(right, 5, POLICY)
    assert "1 users were served" in comparability_problem(right.model_copy(update={"both": 3}), 5, POLICY)
    wrong = share(18_000, 2000).model_copy(update={"at_resume": resumed.at_resume})
    assert "1000 of 10000 users" in comparability_problem(wrong, 5, POLICY)


def covered(champion, canary):
    """Graded and ungraded answers of 1,900 users and 100."""
    rows = [arm(sum(each), graded=each[0], ungraded=each[1], users=n) for each, n in ((champion, 1900), (canary, 100))]
    return evidence(*rows)


def test_grades_that_the_canary_gets_less_often_hold():
    less = covered((1843, 57), (60, 40))
    assert "60.0% of the canary's answers are graded and 97.0% of the champion's" in comparability_problem(
        less, 5, POLICY
    )
    for arms, doubted in (
        (((1526, 374), (100, 0)), False),
        (((1525, 375), (100, 0)), True),
        (((1843, 57), (74, 26)), True),
        (((1843, 57), (75, 25)), False),
    ):
        assert bool(comparability_problem(covered(*arms), 5, POLICY)) is doubted
    assert not comparability_problem(less, 5, SILENT)


def test_users_who_rate_the_canary_less_often_hold():
    assert "60.0% of the canary's answers are rated by users and 97" in comparability_problem(
        covered((1843, 57), (60, 40)), 5, RATED
    )


def test_who_says_nothing_is_not_seen():
    spots = blind_spots(covered((95, 1805), (5, 95)), RATED)
    assert spots == blind_spots(LiveEvidence(), RATED)[:1] + spots[1:] and "who say nothing is not seen" in spots[0]


def test_more_grades_than_requests_hold():
    assert "canary has 101 graded answers to 100 requests" in comparability_problem(
        evidence(arm(1900), arm(100, graded=101)), 5, POLICY
    )
    assert "champion has" in comparability_problem(evidence(arm(1900, graded=2000), arm(100)), 5, POLICY)


@pytest.mark.parametrize(("requests", "graded", "holds"), [(15, 16, ""), (0, 45, ""), (0, 46, "46"), (100, 151, "151")])
def test_two_systems_need_not_count_alike(requests, graded, holds):
    """By request, grades are of the traces and requests of a metrics server, whose windows do not end as one."""
    told = comparability_problem(evidence(arm(19 * requests), arm(requests, graded=graded)), 5, BY_REQUEST)
    assert told == (f"canary has {holds} graded answers to {requests} requests" if holds else "")


def test_a_stage_says_what_it_cannot_see():
    fine = evidence(arm(1900), arm(100, users=20), slow_over_s=1.0)
    assert blind_spots(fine, POLICY) == ()
    assert blind_spots(LiveEvidence(), POLICY) == (), "there was no request yet"
    assert "latency" in blind_spots(evidence(arm(1), arm(0, users=20)), POLICY)[-1], "there was one"
    few = evidence(arm(1900), arm(100, users=19), slow_over_s=1.0)
    assert [spot.split(":")[0] for spot in blind_spots(few, POLICY)] == ["quality"]
    assert "19 users with grades in the smaller arm" in blind_spots(few, POLICY)[0]
    assert blind_spots(few, BY_REQUEST) == ()
    (spot,) = blind_spots(few, SILENT)
    assert "nothing here can be graded" in spot
    assert "latency" in blind_spots(evidence(arm(100), arm(100)), POLICY)[0]
