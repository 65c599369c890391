"""Which router a deployment has, and which model a slot is known to serve."""

import json
import time
from pathlib import Path

import pytest

from assets.resources import Deployment
from assets.rollout import begin_rollout
from assets.traffic import gateway_settings, identity, is_routed, servable_adapters, traffic_split, wanted_models
from k8s.rewrite import PoolRewrite
from pipeline.rollout.fold import read_state
from pipeline.rollout.gateway.split import GatewaySplit
from pipeline.serving.endpoint import served_name
from tests.loop import deployment
from tests.opened import open_rollout
from tests.servers import answering

pytestmark = pytest.mark.slow


@pytest.fixture
def settings(tmp_path: Path) -> Deployment:
    return deployment(tmp_path / "data")


def test_the_embedded_router_is_the_gateway(settings: Deployment) -> None:
    assert isinstance(traffic_split(settings), GatewaySplit)
    assert not is_routed(settings), "none runs"
    assert gateway_settings(settings).model_name == "arithmetic"


def test_a_pool_is_given_the_adapters_of_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("k8s.client.connect", lambda kubeconfig: None)
    pool = ("rollout.traffic={kind: inference_pool}", "rollout.metrics={url: 'http://127.0.0.1:9'}")
    settings = deployment(tmp_path / "data", [*pool, f"rollout.export_to={tmp_path / 'models'}"])
    assert isinstance(traffic_split(settings), PoolRewrite) and is_routed(settings)
    open_rollout(settings, tmp_path, time.time())
    (tmp_path / "candidate" / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 8}')
    (each,) = servable_adapters(settings).values()
    assert each.base == settings.champion().model.digest


def test_where_no_gateway_runs_it_says_so(settings: Deployment) -> None:
    lines: list[str] = []
    begin_rollout(settings, lines.append)
    assert lines[0].startswith("No gateway runs")


def test_slots_are_wanted_for_champion_and_candidate(settings: Deployment, tmp_path: Path) -> None:
    champion = settings.champion().model
    assert wanted_models(settings, time.time()) == [champion]
    open_rollout(settings, tmp_path, time.time())
    proposal = read_state(settings.store(), "arithmetic").proposal
    assert proposal is not None
    assert wanted_models(settings, time.time()) == [champion, proposal.version.model]


def test_a_slot_is_known_by_its_name_and_asked_each_time(settings: Deployment) -> None:
    champion, identify = settings.champion().model.digest, identity(settings)
    names = [served_name("arithmetic", champion), "arithmetic"]
    with answering(lambda asked: (200, json.dumps({"data": [{"id": name} for name in names]}).encode())) as url:
        assert identify(f"{url}/v1") == champion
        names[:] = [served_name("arithmetic", "f" * 64)]
        with pytest.raises(ValueError, match="none of it is a model that is wanted"):
            identify(f"{url}/v1")
    with pytest.raises(OSError, match="does not list its models"):
        identify(f"{url}/v1")
