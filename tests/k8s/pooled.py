"""A namespace with one pool, by the objects of the component `pool`. Its servers take adapters as vLLM does."""

import copy
import json
from contextlib import ExitStack

from k8s.rewrite import MODEL_REWRITE, PoolRewrite
from k8s.slots import CONFIG_MAP, ENDPOINT_SLICE
from pipeline.core.storage import ModelRef
from pipeline.recipe.rollout import InferencePoolTraffic
from pipeline.serving.adapters import ServedAdapter
from pipeline.serving.endpoint import served_name
from tests.servers import HttpAsked, answering

from .fake_api import FakeApi, Object
from .slotted import A, B, C, key, shipped

OVER_A = {each.digest: ServedAdapter(base=A.digest, adapter=ModelRef(uri="", digest=head * 64))
          for each, head in ((B, "2"), (C, "3"))}  # fmt: skip
"""B and C are adapters over A."""
NAMES = {each.digest: served_name("model", each.digest) for each in (A, B, C)}
PATHS = {NAMES[digest]: f"/adapters/model/{each.adapter.digest}" for digest, each in OVER_A.items()}


class VllmPod:
    """What one server holds. `max_rank`: of the adapters that it takes; each has 16."""

    def __init__(self) -> None:
        self.base, self.max_rank, self.away = NAMES[A.digest], 64, False
        self.loaded: dict[str, str] = {}

    def respond(self, request: HttpAsked) -> tuple[int, bytes]:
        if self.away:
            return 503, b"starting"
        if request.path == "/v1/models":
            return 200, json.dumps({"data": [{"id": name} for name in (self.base, *self.loaded)]}).encode()
        body = json.loads(request.body)
        if request.path == "/v1/unload_lora_adapter":
            del self.loaded[body["lora_name"]]
        elif self.max_rank < 16:
            return 500, f"LoRA rank 16 is greater than max_lora_rank {self.max_rank}.".encode()
        else:
            self.loaded[body["lora_name"]] = body["lora_path"]
        return 200, b"done"


class PooledCluster(FakeApi):
    """What a test reads and moves. `pods`: by name, each over A."""

    ROUTING = MODEL_REWRITE

    def __init__(self, stack: ExitStack) -> None:
        super().__init__()
        self.pods = {"pod-0": VllmPod(), "pod-1": VllmPod()}
        kinds = {"InferenceModelRewrite": MODEL_REWRITE, "ConfigMap": CONFIG_MAP}
        for obj in shipped("components/pool", "rewrite", "adapters"):
            if obj["kind"] in kinds:
                obj["metadata"]["creationTimestamp"] = "2026-03-01T00:00:00Z"
                self.put(key(kinds[obj["kind"]], obj["metadata"]["name"]), obj)
        for name, pod in self.pods.items():
            port = int(stack.enter_context(answering(pod.respond)).rpartition(":")[2])
            rows = {"ports": [{"port": port}], "endpoints": [{"addresses": ["127.0.0.1"], "targetRef": {"name": name}}]}
            labels = {"kubernetes.io/service-name": "pool"}
            self.put(key(ENDPOINT_SLICE, name), {"metadata": {"name": name, "labels": labels}, **rows})

    def port(self) -> PoolRewrite:
        digests = {name: digest for digest, name in NAMES.items()}
        own = lambda url, name: digests[name], lambda model: model.uri, lambda: OVER_A
        return PoolRewrite(self.client(), InferencePoolTraffic(), "model", *own)

    def routing(self) -> Object:
        return copy.deepcopy(self.objects[key(MODEL_REWRITE, "model")])

    def operate(self, **spec: object) -> None:
        self.change(key(MODEL_REWRITE, "model"), spec=self.routing()["spec"] | spec)

    def obey(self) -> None:
        """Nothing says that the picker took the object."""

    def shares(self) -> tuple[int, int]:
        """Of A and of B, as the picker draws them."""
        weights = {row["modelRewrite"]: row["weight"] for row in self.routing()["spec"]["rules"][-1]["targets"]}
        assert all(weight >= 1 for weight in weights.values()), "the API takes no other weight"
        return weights.get(NAMES[A.digest], 0), weights.get(NAMES[B.digest], 0)

    def set_shares(self, a: int, b: int) -> None:
        rules, rows = self.routing()["spec"]["rules"], zip((A, B), (a, b), strict=True)
        rules[-1]["targets"] = [{"modelRewrite": NAMES[m.digest], "weight": w} for m, w in rows if w]
        self.operate(rules=rules)

    def share_with_others(self) -> None:
        theirs = {"matches": [{"model": {"value": "other"}}], "targets": [{"modelRewrite": "gone"}]}
        self.operate(rules=[theirs, *self.routing()["spec"]["rules"]])

    def noted(self) -> dict[str, str]:
        """With what a pod starts."""
        return {k: v for k, v in self.objects[key(CONFIG_MAP, "pool-adapters")]["data"].items() if v}
