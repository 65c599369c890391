"""Whole rollouts over an HTTPRoute: to the promotion, and back where the candidate is worse.

The route is of an API in memory, measured by a real Prometheus (skipped where it is not installed) and by
production's own traces.
"""

import itertools
import random
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from assets.resources import Deployment
from assets.rollout import follow_rollout
from k8s.slots import DEPLOYMENT
from pipeline.core.storage import ModelRef
from pipeline.rollout.fold import read_state
from pipeline.rollout.record import Phase, RolloutState
from pipeline.serving.model_places import export_model, exported_uri
from tests.k8s.slotted import SlottedCluster
from tests.loop import EMBEDDED, ROOT
from tests.opened import open_rollout
from tests.production import ERRORS_QUERY, ModelServer, asking, scrape_config
from tests.servers import prometheus

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
NAME = "arithmetic"


class Production:
    """A deployment whose requests another's router splits, with a rollout that is open."""

    def __init__(self, folder: Path, traffic: Mapping[str, Any], patch: pytest.MonkeyPatch) -> None:
        self.folder, self.exported = folder, str(folder / "exported")
        self._traffic, self._url = traffic, "http://127.0.0.1:9"
        self._met: list[int] = []
        self.servers: dict[str, ModelServer] = {}
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
        self.settings = self._deployment()
        open_rollout(self.settings, folder, time.time())
        state = self.state()
        assert state.proposal is not None
        self.champion, self.candidate = state.proposal.champion, state.proposal.version.model
        for model in (self.champion, self.candidate):
            export_model(model, self.exported, NAME)

    def state(self) -> RolloutState:
        return read_state(self.settings.store(), NAME)

    @contextmanager
    def served(
        self, places: Mapping[str, tuple[str, int]], weights: Callable[[], Mapping[str, float]]
    ) -> Generator[None]:
        """Servers at these addresses, by digest, users who ask them by the router's `weights`, and a Prometheus."""

        def noted() -> Mapping[str, float]:
            now = weights()
            self._met.append(round(100 * now.get(self.candidate.digest, 0) / sum(now.values())))
            return now

        with ExitStack() as stack:
            for digest, address in places.items():
                self.servers[digest] = stack.enter_context(ModelServer(NAME, digest, address))
            config = scrape_config(*self.servers.values())
            (self.folder / "prometheus").mkdir()
            self._url = stack.enter_context(prometheus(self.folder / "prometheus", config=config))
            self.settings = self._deployment()
            stack.enter_context(asking(self.servers, noted, self.folder / "spans"))
            yield

    def shares(self, until: int) -> list[int]:
        """Percent of the users' requests that went to the candidate, one weight after the other, once it is `until`."""
        deadline = time.monotonic() + 30
        while self._met[-1] != until and time.monotonic() < deadline:
            time.sleep(0.1)
        return [share for share, _ in itertools.groupby(self._met)]

    def _deployment(self) -> Deployment:
        recipe = yaml.safe_load(EMBEDDED.read_text())
        recipe |= {"data_root": str(self.folder / "data")}
        recipe["base_model"]["uri"] = str(ROOT / "pipeline" / "demo" / "model")
        recipe["traces"]["source"] = {"kind": "otel", "uri": str(self.folder / "spans")}
        metrics = {"url": self._url, "scrape_interval_s": 1}
        recipe["rollout"] |= {
            "traffic": dict(self._traffic),
            "metrics": {**metrics, "errors_query": ERRORS_QUERY},
            "export_to": self.exported,
            "weights": [5, 50, 100],
            "dwell_s": [4, 4, 4],
            "look_every_s": 4,
            "min_canary_requests": 20,
            "max_quality_drop": 0.3,
            "keep_warm_s": 600,
        }
        path = self.folder / "recipe.yaml"
        path.write_text(yaml.safe_dump(recipe))
        return Deployment(recipe_path=str(path))


@contextmanager
def obeying(cluster: SlottedCluster, addresses: Mapping[str, str]) -> Generator[None]:
    """The cluster's controllers: a Deployment runs as many pods as it asks for, one at most, and its Service lists it
    by its address in `addresses`; the gateway takes each route."""
    ended = threading.Event()

    def obey() -> None:
        while not ended.wait(0.05):
            _obey(cluster, addresses)

    thread = threading.Thread(target=obey, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _obey(cluster: SlottedCluster, addresses: Mapping[str, str]) -> None:
    with cluster.lock:
        for name, address in addresses.items():
            obj = cluster.at(DEPLOYMENT, name)
            if (obj.get("status") or {}).get("observedGeneration") != obj["metadata"]["generation"]:
                cluster.run(name, obj["spec"]["replicas"])
                cluster.list_pods(name, {address: ""} if obj["spec"]["replicas"] else {})
        obj = cluster.route()
        rows = [row for parent in (obj.get("status") or {}).get("parents", []) for row in parent["conditions"]]
        if not rows or any(row["observedGeneration"] != obj["metadata"]["generation"] for row in rows):
            cluster.obey()


@contextmanager
def http_route(folder: Path, patch: pytest.MonkeyPatch) -> Generator[Production]:
    """A namespace whose first slot serves the champion. Its pods have addresses of the loopback."""
    production = Production(folder, {"kind": "http_route"}, patch)
    network = f"127.{random.randrange(1, 255)}.{random.randrange(1, 255)}"
    addresses = {"slot-a": f"{network}.1", "slot-b": f"{network}.2"}
    champion = ModelRef(
        uri=exported_uri(production.exported, NAME, production.champion.digest), digest=production.champion.digest
    )
    cluster = SlottedCluster(champion, None)
    patch.setattr("k8s.client.connect", lambda kubeconfig: cluster.client())

    def weights() -> dict[str, float]:
        with cluster.lock:
            return {cluster.data(name)["MODEL_DIGEST"]: weight for name, weight in cluster.weights().items() if weight}

    digests = (production.champion.digest, production.candidate.digest)
    places = {digest: (host, 8000) for digest, host in zip(digests, addresses.values(), strict=True)}
    with obeying(cluster, addresses), production.served(places, weights):
        yield production


@pytest.mark.variant  # of make run's, over the router of others
def test_an_equal_candidate_is_promoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with http_route(tmp_path, monkeypatch) as production:
        state = follow_rollout(production.settings, print, 240.0)
        assert state.phase is Phase.PROMOTED, state.reason
        assert production.shares(until=100) == [0, 5, 50, 80, 100]
        assert state.past.champion is not None and state.past.champion.model.digest == production.candidate.digest


@pytest.mark.variant
@pytest.mark.parametrize("fault", ["wrong answers", "no answers"])
def test_a_worse_candidate_is_taken_back(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with http_route(tmp_path, monkeypatch) as production:
        candidate = production.servers[production.candidate.digest]
        candidate.right, candidate.failing = (0.1, 0.0) if fault == "wrong answers" else (0.9, 0.9)
        state = follow_rollout(production.settings, print, 240.0)
        assert state.phase is Phase.ROLLED_BACK, state.reason
        assert ("quality fell" if fault == "wrong answers" else "errors") in state.reason
        assert production.candidate.digest in state.past.quarantined
        shares = production.shares(until=0)
        assert shares[:2] == [0, 5] and shares[-1] == 0 and 100 not in shares
