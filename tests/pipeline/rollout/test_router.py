import pytest

from pipeline.core.storage import Store
from pipeline.rollout.router import Split, route
from tests.pipeline.rollout.conftest import NAME, split_at
from tests.pipeline.rollout.local_router import LocalRouter


def test_router_reads_back_what_was_applied_and_no_stale_epoch(tmp_path):
    router, other = (LocalRouter(Store(tmp_path), NAME) for _ in range(2))
    assert router.read() is None
    assert router.route("any") == "champion"
    router.apply(split_at(25, epoch=7))
    other.apply(split_at(0, epoch=9))
    router.apply(split_at(100, epoch=8))
    assert router.read() == split_at(0, epoch=9)


@pytest.mark.parametrize("weight", [0, 5, 25, 100])
def test_shares_match_the_weights(weight):
    got = sum(route(split_at(weight), f"request-{n}") == "canary" for n in range(20_000)) / 200
    assert got == pytest.approx(weight, abs=1.0 if 0 < weight < 100 else 0)


def test_router_keeps_canary_requests_within_a_rollout():
    ids = [f"request-{n}" for n in range(2000)]
    at_5, at_25 = ({i for i in ids if route(split_at(w), i) == "canary"} for w in (5, 25))
    assert at_5 < at_25
    assert at_5 != {i for i in ids if route(split_at(5, rollout="next"), i) == "canary"}


@pytest.mark.parametrize("weights", [(50, 60), (110, -10)])
def test_weights_sum_to_100(weights):
    with pytest.raises(ValueError, match="sum to 100"):
        Split.model_validate({**split_at(5).model_dump(), "champion_weight": weights[0], "canary_weight": weights[1]})


def test_no_traffic_without_a_canary():
    with pytest.raises(ValueError, match="Name the canary"):
        Split.model_validate({**split_at(5).model_dump(), "canary": None})
