"""Which router a deployment has, and which model a slot is known to serve."""

import json
import threading
import time
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from assets.resources import Deployment
from assets.rollout import begin_rollout
from assets.traffic import gateway_settings, identity, is_routed, traffic_split, wanted_models
from pipeline.rollout.fold import read_state
from pipeline.rollout.gateway.split import GatewaySplit
from pipeline.serving.endpoint import served_name
from tests.loop import deployment
from tests.opened import open_rollout

pytestmark = pytest.mark.slow


class ModelServer(ThreadingHTTPServer):
    """Lists the models that it is given."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.names: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"


class _Handler(BaseHTTPRequestHandler):
    server: ModelServer

    def do_GET(self) -> None:
        body = json.dumps({"data": [{"id": name} for name in self.server.names]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Generator[ModelServer]:
    with ModelServer() as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


@pytest.fixture
def settings(tmp_path: Path) -> Deployment:
    return deployment(tmp_path / "data")


def test_the_embedded_router_is_the_gateway(settings: Deployment) -> None:
    assert isinstance(traffic_split(settings), GatewaySplit)
    assert not is_routed(settings), "none runs"
    assert gateway_settings(settings).model_name == "arithmetic"


def test_where_no_gateway_runs_it_says_who_starts_one(settings: Deployment, tmp_path: Path) -> None:
    lines: list[str] = []
    begin_rollout(settings, lines.append)
    own = [*settings.overrides, f'traces.source={{"kind":"otel","uri":"{tmp_path}"}}']
    begin_rollout(Deployment(recipe_path=settings.recipe_path, overrides=own), lines.append)
    assert ["starts one" in line for line in lines] == [True, False]
    assert "start it with pt serve" in lines[1]


def test_slots_are_wanted_for_champion_and_candidate(settings: Deployment, tmp_path: Path) -> None:
    champion = settings.champion().model
    assert wanted_models(settings, time.time()) == [champion]
    open_rollout(settings, tmp_path, time.time())
    proposal = read_state(settings.store(), "arithmetic").proposal
    assert proposal is not None
    assert wanted_models(settings, time.time()) == [champion, proposal.version.model]


def test_a_slot_is_known_by_its_name_and_asked_each_time(settings: Deployment, server: ModelServer) -> None:
    champion = settings.champion().model.digest
    server.names = [served_name("arithmetic", champion), "arithmetic"]
    identify = identity(settings)
    assert identify(server.url) == champion
    server.names = [served_name("arithmetic", "f" * 64)]
    with pytest.raises(ValueError, match="none of it is a model that is wanted"):
        identify(server.url)


def test_a_slot_that_is_away_is_known_to_be(settings: Deployment, server: ModelServer) -> None:
    server.names = [served_name("arithmetic", settings.champion().model.digest)]
    identify = identity(settings)
    identify(server.url)
    server.shutdown()
    server.server_close()
    with pytest.raises(OSError, match="does not list its models"):
        identify(server.url)
