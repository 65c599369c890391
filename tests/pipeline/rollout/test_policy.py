import pytest

from pipeline.recipe import Rollout
from pipeline.rollout.policy import policy_of

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
    with pytest.raises(ValueError, match="splits by user"):
        Rollout.model_validate({**silent, "metrics": ROUTE["metrics"]})


def test_the_sample_is_automatic_unless_a_recipe_sets_it():
    assert policy_of(Rollout()).min_canary_requests == "auto"
    assert policy_of(Rollout(min_canary_requests=61)).min_canary_requests == 61
    with pytest.raises(ValueError, match="min_canary_requests"):
        Rollout.model_validate({"min_canary_requests": "some"})
