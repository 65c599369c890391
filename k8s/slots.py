"""The two slots of a cluster, each a ConfigMap, a Deployment and a Service of one name. The ConfigMap names the model
that the pods load when they start, so it changes only while there are none."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from k8s.client import ApiResource, KubernetesClient, Unreachable
from pipeline.core.storage import ModelRef
from pipeline.rollout.router import Identify, Readiness
from pipeline.serving.endpoint import served_name

CONFIG_MAP = ApiResource("", "v1", "configmaps")
DEPLOYMENT = ApiResource("apps", "v1", "deployments")
ENDPOINT_SLICE = ApiResource("discovery.k8s.io", "v1", "endpointslices")
SERVICE_LABEL = "kubernetes.io/service-name"
"""On an EndpointSlice: whose addresses it holds."""
URI, DIGEST, SERVED_NAME, NAME = "MODEL_URI", "MODEL_DIGEST", "SERVED_MODEL_NAME", "MODEL_NAME"
"""Keys of a slot's ConfigMap. The served name holds the digest; the other is what callers ask for."""
PORT = 8000

T = TypeVar("T")
AT_ONCE = 8
"""Pods of a slot that are asked at the same time."""


class Slot(NamedTuple):
    """One slot as its ConfigMap and its Deployment say. `digest`: "" while it was given no model."""

    name: str
    uri: str
    digest: str
    version: str
    """resourceVersion of the ConfigMap."""
    wanted: int
    """Replicas that the Deployment asks for."""
    pods: int
    """Pods that it has, ready or not."""
    ready: int
    """Pods that are ready; 0 while the Deployment lags behind its own change."""
    missing: str = ""
    """Which of its objects is not there."""


class SlotPair:
    """The slots of one namespace, by name."""

    def __init__(self, client: KubernetesClient, namespace: str, names: tuple[str, str], model_name: str) -> None:
        """`model_name`: what callers ask for."""
        self._client, self._namespace, self.names, self._model_name = client, namespace, names, model_name

    def read(self) -> tuple[Slot, Slot]:
        """Both, whatever is wrong with them. Raises OSError when nobody answers, ValueError where it is refused."""
        first, second = (self._slot(name) for name in self.names)
        return first, second

    def check(self, slots: tuple[Slot, Slot]) -> None:
        """Raise ValueError when one is missing or both hold one model."""
        first, second = slots
        for slot in slots:
            if slot.missing:
                raise ValueError(
                    f"There is no {slot.missing} {slot.name} in namespace {self._namespace}. Apply "
                    "k8s/manifests/bases/serving, or name the slots in rollout.traffic."
                )
        if first.digest and first.digest == second.digest:
            raise ValueError(
                f"{first.name} and {second.name} both hold model {first.digest[:12]}, and the arms cannot be told "
                f"apart. Give ConfigMap {self._namespace}/{second.name} another one."
            )

    def load(self, slot: Slot, model: ModelRef) -> str:
        """Have the slot's next pods load the model from its uri. Returns what that waits for, "" when it is done.

        Call it again until then: pods of another model are scaled down first. Raises as `read`.
        """
        if (slot.uri, slot.digest) == (model.uri, model.digest):
            return ""
        if slot.wanted or slot.pods:
            self.scale(slot.name, 0)
            return f"{slot.name} still has {slot.pods} pods of model {slot.digest[:12]}"
        name = self._model_name
        values = {URI: model.uri, DIGEST: model.digest, SERVED_NAME: served_name(name, model.digest), NAME: name}
        operations = [{"op": "test", "path": "/metadata/resourceVersion", "value": slot.version}]
        operations += [{"op": "add", "path": f"/data/{key}", "value": value} for key, value in values.items()]
        self._patch(CONFIG_MAP, slot.name, operations)
        return ""

    def scale(self, name: str, replicas: int) -> None:
        """Ask for that many pods. Raises ValueError or OSError."""
        self._patch(DEPLOYMENT, name, [{"op": "replace", "path": "/spec/replicas", "value": replicas}], "scale")

    def readiness(self, slot: Slot, identify: Identify) -> Readiness:
        """What the slot serves now, by the fingerprint of each ready pod behind its Service.

        A slot that does not answer, or whose pods serve different models, is a reason. Raises as `read`.
        """
        if not slot.ready:
            return Readiness(served_digest="", replicas=0, reason=f"{slot.name}: none of {slot.wanted} pods is ready")
        pods = servers(self._client, self._namespace, slot.name)
        return readiness_of(
            slot.name, slot.digest, slot.ready, of_each(pods, lambda pod, url: asked(pod, url, identify))
        )

    def _slot(self, name: str) -> Slot:
        config, deployment = self._get(CONFIG_MAP, name), self._get(DEPLOYMENT, name)
        data: dict[str, str] = (config or {}).get("data") or {}
        status: dict[str, Any] = (deployment or {}).get("status") or {}
        generation = deployment["metadata"].get("generation", 0) if deployment else 0
        lags = status.get("observedGeneration", 0) < generation
        return Slot(
            name=name,
            uri=data.get(URI, ""),
            digest=data.get(DIGEST, ""),
            version=config["metadata"]["resourceVersion"] if config else "",
            wanted=int(deployment["spec"].get("replicas", 1)) if deployment else 0,
            pods=int(status.get("replicas", 0)),
            ready=0 if lags else int(status.get("readyReplicas", 0)),
            missing="deployment" if deployment is None else "configmap" if config is None else "",
        )

    def _get(self, resource: ApiResource, name: str) -> dict[str, Any] | None:
        return reached(lambda: self._client.get(resource, self._namespace, name))

    def _patch(self, resource: ApiResource, name: str, operations: list[dict[str, Any]], subresource: str = "") -> None:
        reached(lambda: self._client.patch(resource, self._namespace, name, operations, subresource))


def servers(client: KubernetesClient, namespace: str, service: str) -> dict[str, str]:
    """Root URLs of the ready pods behind a Service, by name. Raises OSError when nobody answers, ValueError where it is
    refused."""
    pods: dict[str, str] = {}
    for each in reached(lambda: client.list(ENDPOINT_SLICE, namespace, f"{SERVICE_LABEL}={service}")):
        port = int(((each.get("ports") or [{}])[0]).get("port") or PORT)
        for endpoint in each.get("endpoints") or []:
            if (endpoint.get("conditions") or {}).get("ready", True) is False:  # absent: to be taken for ready
                continue
            address = str(endpoint["addresses"][0])
            host = f"[{address}]" if ":" in address else address
            target = (endpoint.get("targetRef") or {}).get("name") or address
            pods.setdefault(target, f"http://{host}:{port}/v1")
    return dict(sorted(pods.items()))


def of_each(pods: Mapping[str, str], call: Callable[[str, str], T]) -> list[T]:
    """What a call returns for the name and the root URL of each pod."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(lambda pod: call(pod, pods[pod]), pods))


class PodAnswer(NamedTuple):
    """What one server was found to serve, or why that is not known."""

    pod: str
    digest: str = ""
    trouble: str = ""
    answered: bool = False
    """It answered, and as no model that is known."""


def readiness_of(name: str, digest: str, ready: int, answers: Sequence[PodAnswer]) -> Readiness:
    """Of the model `digest` on the pods of the Service `name`, of which `ready` should have been asked."""
    served = {answer.pod: answer.digest for answer in answers if answer.digest}
    others = [each for each in served.values() if each != digest]
    failed = [answer for answer in answers if answer.trouble]
    replicas, reason = len(answers), ""
    if others:
        reason = f"{name} was given model {digest[:12]} and serves {others[0][:12]}. Start its pods again."
        if len(set(served.values())) > 1:
            each = ", ".join(f"{pod} {digest[:12]}" for pod, digest in sorted(served.items()))
            reason = f"{name}: its pods serve different models ({each}). Start those of another model again."
        digest = others[0]
    elif failed:
        unknown = not served or any(answer.answered for answer in failed)
        reason = f"{name}: {'; '.join(answer.trouble for answer in failed)}"
        digest, replicas = "" if unknown else digest, len(answers) - len(failed)
    elif len(answers) < ready:
        digest = digest if served else ""
        reason = f"{name}: its Service has {len(answers)} of {ready} ready pods, and the others are not known"
    return Readiness(served_digest=digest, replicas=replicas, reason=reason)


def asked(pod: str, url: str, identify: Identify, name: str = "") -> PodAnswer:
    """`name`: which of its models is meant; "": the one that it holds."""
    try:
        return PodAnswer(pod, identify(url, name))
    except (OSError, ValueError) as error:
        return PodAnswer(pod, trouble=f"{pod}: {error}", answered=not isinstance(error, OSError))


def reached(call: Callable[[], T]) -> T:
    """What a call of the client returns. Raises OSError where it gets no answer, ValueError where it is refused."""
    try:
        return call()
    except Unreachable as error:
        raise ConnectionError(str(error)) from error
