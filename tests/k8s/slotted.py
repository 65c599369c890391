"""A namespace with two slots and their route, as the base `serving` ships them, and a gateway that obeys or not."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from k8s.client import ApiResource
from k8s.route import HTTP_ROUTE, HttpRoute
from k8s.slots import CONFIG_MAP, DEPLOYMENT, ENDPOINT_SLICE
from pipeline.core.storage import ModelRef
from pipeline.recipe.rollout import HttpRouteTraffic
from pipeline.rollout.router import Split

from .fake_api import FakeApi, Key, Object
from .manifests import MANIFESTS

A, B, C = (ModelRef(uri=f"s3://models/{letter * 64}", digest=letter * 64) for letter in "abc")
KINDS = {"ConfigMap": CONFIG_MAP, "Deployment": DEPLOYMENT, "HTTPRoute": HTTP_ROUTE}


def split(canary: int, epoch: int, rollout: str = "r1", champion: ModelRef = A, other: ModelRef | None = B) -> Split:
    return Split(
        rollout=rollout,
        epoch=epoch,
        champion=champion,
        champion_weight=100 - canary,
        canary=other,
        canary_weight=canary,
    )


def shipped(folder: str, *files: str) -> Iterator[Object]:
    """Objects of the manifests as they are written."""
    for file in files:
        yield from yaml.safe_load_all((MANIFESTS / folder / f"{file}.yaml").read_text())


def url_host(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def key(of: ApiResource, name: str) -> Key:
    return of.group, of.plural, name


class SlottedCluster(FakeApi):
    """What a test reads and moves. `serves`: digest by slot, what a fingerprint would tell; an error is raised."""

    ROUTING = HTTP_ROUTE

    def __init__(self, a: ModelRef | None = A, b: ModelRef | None = B) -> None:
        super().__init__()
        self.serves: dict[str, str | Exception] = {}
        self.identified: list[str] = []
        """Root URL of each fingerprint."""
        for obj in shipped("bases/serving", "slots", "servers", "route"):
            if obj["kind"] in KINDS:
                self.put(key(KINDS[obj["kind"]], obj["metadata"]["name"]), obj)
        for name, model in (("slot-a", a), ("slot-b", b)):
            self.hold(name, model)
            self.scale(name, int(model is not None))
            self.run(name, int(model is not None))
            self.serves[name] = model.digest if model else ""
        self.obey()

    def _answer(self, method: str, path: str, params: Any, json: Any, headers: Any) -> Any:
        path = path.removesuffix("/scale")  # of a Deployment, whose replicas it has at the same place
        return super()._answer(method, path, params, json, headers)

    def port(self) -> HttpRoute:
        return HttpRoute(self.client(), HttpRouteTraffic(), "model", self._identify, self.location)

    def at(self, of: ApiResource, name: str) -> Object:
        return copy.deepcopy(self.objects[key(of, name)])

    def route(self) -> Object:
        return self.at(HTTP_ROUTE, "model")

    routing = route

    def weights(self) -> dict[str, int]:
        """Of the last rule: those of others stand before it."""
        return {row["name"]: row["weight"] for row in self.route()["spec"]["rules"][-1]["backendRefs"]}

    def shares(self) -> tuple[int, int]:
        """Of the slots of A and B."""
        a, b = self.weights().values()
        return a, b

    def share_with_others(self) -> None:
        theirs = {"backendRefs": [{"name": "slot-b", "port": 8000}], "filters": [{"type": "URLRewrite"}]}
        self.operate(rules=[theirs, *self.route()["spec"]["rules"]])

    def operate(self, **spec: Any) -> None:
        """What an operator does to the route's spec."""
        self.change(key(HTTP_ROUTE, "model"), spec=self.route()["spec"] | spec)

    def set_shares(self, a: int, b: int) -> None:
        rules = self.route()["spec"]["rules"]
        for row, weight in zip(rules[0]["backendRefs"], (a, b), strict=True):
            row["weight"] = weight
        self.operate(rules=rules)

    def obey(self, **conditions: str) -> None:
        """The gateway has taken the route; conditions that are not named are True."""
        obj = self.route()
        rows = [
            {
                "type": kind,
                "status": conditions.get(kind, "True"),
                "observedGeneration": obj["metadata"]["generation"],
                "reason": "BackendNotFound" if kind in conditions else kind,
            }
            for kind in ("Accepted", "ResolvedRefs")
        ]
        parents = [{"parentRef": reference, "conditions": rows} for reference in obj["spec"]["parentRefs"]]
        self.change(key(HTTP_ROUTE, "model"), status={"parents": parents})

    def run(self, name: str, pods: int, lag: int = 0) -> None:
        """What the Deployment's controller says of so many pods, all ready."""
        generation = self.at(DEPLOYMENT, name)["metadata"]["generation"] - lag
        status = {"observedGeneration": generation, "replicas": pods, "readyReplicas": pods}
        self.change(key(DEPLOYMENT, name), status=status)

    def hold(self, name: str, model: ModelRef | None) -> None:
        data = {"MODEL_URI": model.uri if model else "", "MODEL_DIGEST": model.digest if model else ""}
        self.change(key(CONFIG_MAP, name), data=self.data(name) | data)

    def data(self, name: str) -> dict[str, str]:
        return self.at(CONFIG_MAP, name)["data"]

    def scale(self, name: str, replicas: int) -> None:
        self.change(key(DEPLOYMENT, name), spec={"replicas": replicas})

    def wanted(self, name: str) -> int:
        return self.at(DEPLOYMENT, name)["spec"]["replicas"]

    def lose(self, of: ApiResource, name: str) -> None:
        del self.objects[key(of, name)]

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
            metadata = {"name": f"{name}-{place}", "labels": {"kubernetes.io/service-name": name}}
            obj = {"metadata": metadata, "ports": [{"name": "http", "port": 8000}], "endpoints": rows[place::slices]}
            self.put(key(ENDPOINT_SLICE, f"{name}-{place}"), obj)

    def _identify(self, url: str, name: str) -> str:
        self.identified.append(url)
        host = url.removeprefix("http://").partition("/")[0].rpartition(":")[0]
        served = self.serves[host if host in self.serves else host.partition(".")[0]]
        if isinstance(served, Exception):
            raise served
        return served
