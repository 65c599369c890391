import numpy as np
import pytest

from pipeline.rollout.evidence import LiveEvidence
from pipeline.rollout.rules import ERROR_SCALE, QUALITY_SCALE, SLOW_SCALE, harm
from pipeline.rollout.shares import proven, variance
from tests.pipeline.rollout.looks import BY_REQUEST, POLICY, RASH, arm, evidence


def test_a_canary_that_answers_nothing_is_harm_without_blame():
    """Before anything graded, at the very first look."""
    dead = evidence(arm(1425), arm(30, errors=30, users=2), silent=30)
    seen = harm(dead, POLICY)
    assert seen is not None and "answered none of its last 30" in seen.reason and not seen.quarantine
    assert harm(evidence(arm(1425), arm(29, errors=29, users=2), silent=29), POLICY) is None


def test_a_canary_without_a_ready_replica_for_two_looks_is_harm():
    assert harm(LiveEvidence(), POLICY, unready_looks=1) is None
    seen = harm(LiveEvidence(), POLICY, unready_looks=2)
    assert seen is not None and "no replica" in seen.reason and not seen.quarantine


CALM, HASTY = arm(19_000, timed=19_000, slow=1140), arm(1000, timed=1000, slow=60)
JUDGED = [
    (evidence(arm(20_000), arm(1000, 0.2, errors=900), silent=500), POLICY, "unavailable"),
    (evidence(arm(20_000, errors=200, graded=0), arm(1000, errors=80, graded=0)), POLICY, "errors"),
    (evidence(arm(200_000, errors=2000), arm(100_000, errors=2600)), POLICY, "errors"),
    (evidence(arm(200_000, errors=2000), arm(100_000, errors=2000)), POLICY, ""),
    (evidence(arm(19_000), arm(1000, 0.5)), POLICY, "quality"),
    (evidence(arm(19_000), arm(1000, 0.5)), POLICY.model_copy(update={"gradable": False}), ""),
    (evidence(arm(190_000), arm(100_000, 0.675)), POLICY, ""),
    (evidence(arm(1000, 1.0), arm(30, 0.0, users=25)), RASH, "quality"),
    (evidence(arm(1000, 1.0, users=25), arm(29, 0.0, users=25)), RASH, ""),
    (evidence(arm(29, 1.0, users=25), arm(1000, 0.0, users=25)), RASH, ""),
    (evidence(CALM, HASTY), POLICY, ""),
    (evidence(arm(19_000), HASTY), POLICY, ""),
    (evidence(arm(1000, timed=1000, slow=30), HASTY), POLICY, ""),
]


@pytest.mark.parametrize(("seen", "policy", "kind"), JUDGED)
def test_harm_is_over_its_margin_alone(seen, policy, kind):
    found = harm(seen, policy)
    assert (found.kind if found else "") == kind


def test_few_errors_are_no_evidence():
    for requests, errors, harmful in ((100, 10, True), (90, 9, False)):
        assert bool(harm(evidence(arm(20_000), arm(requests, errors=errors)), RASH)) is harmful
    for requests in (29, 30):
        assert bool(harm(evidence(arm(20_000), arm(requests, errors=28, users=20)), RASH)) is (requests == 30)
    assert not harm(evidence(arm(29), arm(1000, errors=900)), RASH)
    assert not harm(evidence(arm(20_000), arm(900, errors=9)), RASH)


@pytest.mark.parametrize(("canary", "champion"), [(19, 500), (500, 19)])
def test_quality_takes_20_users_in_each_arm(canary, champion):
    few = evidence(arm(10_000, 0.9, users=champion), arm(10_000, 0.2, users=canary))
    assert harm(few, POLICY) is None
    assert harm(few, BY_REQUEST)
    assert harm(evidence(arm(10_000, 0.9), arm(10_000, 0.2, users=20)), POLICY)


def test_latency_is_harm_when_more_than_1_percent_are_slow():
    calm = arm(19_000, timed=19_000, slow=190)
    seen = harm(evidence(calm, arm(1000, timed=1000, slow=60), slow_over_s=2.5), POLICY)
    assert seen is not None and "6.0% of the canary's requests took over 2.5 s" in seen.reason and seen.quarantine
    assert not harm(evidence(calm, arm(1000, timed=1000, slow=12), slow_over_s=2.5), POLICY)
    assert not harm(evidence(calm, arm(100, timed=100, slow=9), slow_over_s=2.5), RASH)
    assert harm(evidence(calm, arm(100, timed=100, slow=10), slow_over_s=2.5), RASH)


@pytest.mark.parametrize(
    ("champion", "canary", "share", "limit", "margin", "scale"),
    [
        (arm(10_000), arm(1000, 0.62), "quality", -1, -0.03, QUALITY_SCALE),
        (arm(10_000, errors=100), arm(1000, errors=36), "errors", 2, 0, ERROR_SCALE),
        (arm(10_000, timed=10_000, slow=0), arm(1000, timed=1000, slow=21), "slow", 0, -0.01, SLOW_SCALE),
    ],
    ids=["quality", "errors", "latency"],
)
def test_each_rule_has_a_third_of_alpha(champion, canary, share, limit, margin, scale):
    arms = getattr(canary, share), getattr(champion, share)
    excess = arms[1].share - arms[0].share if limit < 0 else arms[0].share - limit * arms[1].share
    spread = variance(arms[0], "user") + limit**2 * variance(arms[1], "user")
    decided = [
        (
            bool(harm(evidence(champion, canary, slow_over_s=1.0), at(alpha))),
            proven(excess + margin, spread, third, scale),
        )
        for alpha in np.geomspace(1e-4, 0.9, 200)
        for third in [alpha / 3]
    ]
    assert all(judged == expected for judged, expected in decided)
    assert {judged for judged, _ in decided} == {True, False}


def at(alpha):
    return POLICY.model_copy(update={"alpha": float(alpha)})
