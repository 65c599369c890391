"""A namespace with two slots and their route, as the base `serving` ships them, and a gateway that obeys or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from k8s.client import KubernetesClient, connect
from k8s.route import HttpRoute
from pipeline.core.storage import ModelRef
from pipeline.recipe.rollout import HttpRouteTraffic
from pipeline.rollout.router import Split

from .cluster.server import Server

SPACE = "serving"
A, B, C = (ModelRef(uri=f"s3://models/{letter * 64}", digest=letter * 64) for letter in "abc")


def split(canary: int, epoch: int, rollout: str = "r1", champion: ModelRef = A, other: ModelRef | None = B) -> Split:
    return Split(
        rollout=rollout,
        epoch=epoch,
        champion=champion,
        champion_weight=100 - canary,
        canary=other,
        canary_weight=canary,
    )


def route(kind: str = "Service", group: str = "", rollout: str = "") -> dict[str, Any]:
    words = {"rollout": rollout, "epoch": "0", "champion": "", "canary": ""}
    backends = [
        {"group": group, "kind": kind, "name": name, "port": 8000, "weight": weight}
        for name, weight in (("slot-a", 100), ("slot-b", 0))
    ]
    annotations = {f"preference-tuning/{key}": value for key, value in words.items()}
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": "model", "namespace": SPACE, "annotations": annotations},
        "spec": {
            "parentRefs": [{"name": "gateway", "namespace": "gateway-system"}],
            "hostnames": ["model.example.com"],
            "rules": [{"matches": [{"path": {"type": "Exact", "value": "/v1/completions"}}], "backendRefs": backends}],
        },
    }


def slot(name: str, model: ModelRef | None, replicas: int = 1) -> list[dict[str, Any]]:
    data = {"MODEL_URI": model.uri if model else "", "MODEL_DIGEST": model.digest if model else ""}
    meta, labels = {"name": name, "namespace": SPACE}, {"slot": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "vllm", "image": "vllm:1"}]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data | {"SERVED_MODEL_NAME": "model"}},
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec},
    ]


def url_host(address: str) -> str:
    return f"[{address}]" if ":" in address else address


@dataclass
class SlottedCluster:
    """What a test reads and moves. `serves`: digest by slot, what a fingerprint would tell; an error is raised."""

    server: Server
    folder: Path
    serves: dict[str, str | Exception] = field(default_factory=dict)
    asked: list[tuple[str, int]] = field(default_factory=list)
    """Root URL and rounds of each fingerprint."""
    shipped: Sequence[dict[str, Any]] = ()
    """Objects of the manifests in place of slots that hold A and B."""

    def __post_init__(self) -> None:
        own = [*slot("slot-a", A), *slot("slot-b", B), route()]
        wanted = [obj for obj in self.shipped or own if obj["kind"] in ("ConfigMap", "Deployment", "HTTPRoute")]
        self.space = wanted[0]["metadata"]["namespace"]
        self.server.storage.create("Namespace", "", {"metadata": {"name": self.space}})
        for obj in wanted:
            self.server.storage.create(obj["kind"], self.space, obj)
        if not self.shipped:
            for name in ("slot-a", "slot-b"):
                self.run(name, 1)
            self.serves |= {"slot-a": A.digest, "slot-b": B.digest}
        self.obey()

    def port(self) -> HttpRoute:
        return HttpRoute(self.client(), HttpRouteTraffic(namespace=self.space), "model", self._identify, self.location)

    def client(self) -> KubernetesClient:
        client = connect(str(self.server.kubeconfig(self.folder / "kubeconfig")))
        client.pauses_s = (0.01, 0.01)
        return client

    def route(self) -> dict[str, Any]:
        return self.server.storage.get("HTTPRoute", self.space, "model")

    def weights(self) -> dict[str, int]:
        return {row["name"]: row["weight"] for row in self.route()["spec"]["rules"][0]["backendRefs"]}

    def change(self, **spec: Any) -> None:
        """What an operator does to the route's spec."""
        obj = self.route()
        self.server.storage.update("HTTPRoute", self.space, obj | {"spec": obj["spec"] | spec}, manager="operator")

    def set_weights(self, a: int, b: int) -> None:
        rules = self.route()["spec"]["rules"]
        for row, weight in zip(rules[0]["backendRefs"], (a, b), strict=True):
            row["weight"] = weight
        self.change(rules=rules)

    def obey(self, lag: int = 0, **conditions: str) -> None:
        """The gateway has taken the route, `lag` generations ago; conditions that are not named are True."""
        obj = self.route()
        of = obj["metadata"]["generation"] - lag
        rows = [
            {
                "type": kind,
                "status": conditions.get(kind, "True"),
                "observedGeneration": of,
                "reason": "BackendNotFound" if kind in conditions else kind,
                "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
            for kind in ("Accepted", "ResolvedRefs")
        ]
        parents = [
            {"parentRef": reference, "controllerName": "example.com/gateway", "conditions": rows}
            for reference in obj["spec"]["parentRefs"]
        ]
        self.server.storage.update("HTTPRoute", self.space, obj | {"status": {"parents": parents}}, "status")

    def run(self, name: str, pods: int, lag: int = 0) -> None:
        """What the Deployment's controller says of so many pods, all ready."""
        obj = self.server.storage.get("Deployment", self.space, name)
        status = {"observedGeneration": obj["metadata"]["generation"] - lag, "replicas": pods, "readyReplicas": pods}
        self.server.storage.update("Deployment", self.space, obj | {"status": status}, "status")

    def hold(self, name: str, model: ModelRef | None) -> None:
        obj = self.server.storage.get("ConfigMap", self.space, name)
        data = {"MODEL_URI": model.uri if model else "", "MODEL_DIGEST": model.digest if model else ""}
        self.server.storage.update("ConfigMap", self.space, obj | {"data": obj["data"] | data})

    def data(self, name: str) -> dict[str, str]:
        return self.server.storage.get("ConfigMap", self.space, name)["data"]

    def scale(self, name: str, replicas: int) -> None:
        obj = self.server.storage.get("Deployment", self.space, name)
        self.server.storage.update("Deployment", self.space, obj | {"spec": obj["spec"] | {"replicas": replicas}})

    def wanted(self, name: str) -> int:
        return self.server.storage.get("Deployment", self.space, name)["spec"]["replicas"]

    def location(self, model: ModelRef) -> str:
        return f"s3://models/{model.digest}"

    def list_pods(self, name: str, pods: Mapping[str, str | Exception], ready: bool = True, slices: int = 1) -> None:
        """What the controller of EndpointSlices says of a slot's pods: by address, with what each serves."""
        rows = [
            {"addresses": [address], "conditions": {"ready": ready}, "targetRef": {"kind": "Pod", "name": f"pod-{n}"}}
            for n, address in enumerate(pods)
        ]
        self.serves |= {url_host(address): served for address, served in pods.items()}
        for place in range(slices):
            labels = {"kubernetes.io/service-name": name}
            obj = {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {"name": f"{name}-{place}", "namespace": self.space, "labels": labels},
                "addressType": "IPv4",
                "ports": [{"name": "http", "port": 8000, "protocol": "TCP"}],
                "endpoints": rows[place::slices],
            }
            self.server.storage.create("EndpointSlice", self.space, obj)

    def _identify(self, url: str, rounds: int) -> str:
        self.asked.append((url, rounds))
        host = url.removeprefix("http://").partition("/")[0].rpartition(":")[0]
        served = self.serves[host if host in self.serves else host.partition(".")[0]]
        if isinstance(served, Exception):
            raise served
        return served
