import pytest

from pipeline.recipe import Rollout
from pipeline.rollout.policy import RolloutPolicy, policy_of

NAN = float("nan")
ROUTE = {
    "export_to": "s3://models/served",
    "traffic": {"kind": "http_route"},
    "metrics": {"kind": "prometheus", "url": "http://prometheus:9090"},
}


@pytest.mark.parametrize(
    "change",
    [
        {"weights": (5, 25)},
        {"weights": (100,), "dwell_s": (1.0,)},
        {"weights": (25, 5, 100)},
        {"weights": (5, 5, 100)},
        {"dwell_s": (1.0,)},
        {"dwell_s": (1.0, NAN, 1.0)},
        {"alpha": 0.0},
        {"holdback": 0},
        {"weights": (5, 95, 100)},
        {"weights": (5, 60, 100), "holdback": 40},
    ],
)
def test_a_policy_that_leads_nowhere_is_refused(change):
    with pytest.raises(ValueError, match=r"Give|give a holdback|finite number"):
        policy_of(Rollout(**change))


@pytest.mark.parametrize("dwell_s", [(1.0, NAN, 1.0), (1.0, -1.0, 1.0), (1.0, float("inf"), 1.0)])
def test_a_dwell_that_never_ends_is_refused_unvalidated_too(dwell_s):
    with pytest.raises(ValueError, match="Give one time in seconds"):
        policy_of(Rollout().model_copy(update={"dwell_s": dwell_s}))


def test_one_stage_before_all_is_enough():
    assert policy_of(Rollout(weights=(5, 100), dwell_s=(1.0, 1.0))).weights == (5, 100)


def test_metrics_older_than_five_minutes_are_too_old():
    assert policy_of(Rollout()).max_metrics_age_s == 300


def test_a_policy_on_record_from_before_has_the_holdback():
    written = policy_of(Rollout()).model_dump(exclude={"holdback"})
    assert RolloutPolicy.model_validate(written).weight_at(2) == 95


def test_the_last_weight_leaves_the_holdback_with_the_champion():
    policy = policy_of(Rollout(weights=(5, 89, 100), holdback=10))
    assert [policy.weight_at(stage) for stage in range(3)] == [5, 89, 90]


def test_the_unit_is_what_the_router_randomises():
    assert policy_of(Rollout()).unit == "user"
    assert policy_of(Rollout.model_validate(ROUTE)).unit == "request"


def test_a_gateway_that_records_no_text_cannot_be_graded():
    silent = {"traffic": {"kind": "gateway", "record": "operations"}}
    assert policy_of(Rollout()).gradable
    assert not policy_of(Rollout(), gradable=False).gradable
    assert not policy_of(Rollout.model_validate(silent)).gradable
    rated = [policy_of(Rollout.model_validate(section), rated=True) for section in ({}, silent)]
    assert [(each.gradable, each.by_feedback) for each in rated] == [(True, False), (True, True)]
    assert policy_of(Rollout(), gradable=False, rated=True).by_feedback
    with pytest.raises(ValueError, match="splits by user"):
        Rollout.model_validate({**silent, "metrics": ROUTE["metrics"]})


def test_the_sample_is_automatic_unless_a_recipe_sets_it():
    assert policy_of(Rollout()).min_canary_requests == "auto"
    assert policy_of(Rollout(min_canary_requests=61)).min_canary_requests == 61
    with pytest.raises(ValueError, match="min_canary_requests"):
        Rollout.model_validate({"min_canary_requests": "some"})


def test_approvers_are_names() -> None:
    assert policy_of(Rollout.model_validate({"approvers": ["ada"]})).approvers == ("ada",)
    assert not policy_of(Rollout()).needs_approval
    with pytest.raises(ValueError, match="at least 1 character"):
        Rollout.model_validate({"approvers": [""]})
