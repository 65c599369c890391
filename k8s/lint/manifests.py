"""Manifests as the rules see them: objects by kind, and what each workload starts: pods, Jobs, commands."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from k8s.gang import INSTANCES, Instance
from k8s.lint.rules import Node, at, labels, quantity, rows, sub, text, texts, whole

GPU, EFA = "nvidia.com/gpu", "vpc.amazonaws.com/efa"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
CAPACITY = "karpenter.sh/capacity-type"
GANGS = {"Job": "jobs", "JobSet": "jobsets", "VolcanoJob": "jobs", "RayJob": "rayjobs", "RayCluster": "rayclusters"}
"""Kinds that may train, and their plurals."""
SERVERS = ("CronJob", "DaemonSet", "Deployment", "InferenceService", "Pod", "ReplicaSet", "StatefulSet")


class Container(NamedTuple):
    where: str
    node: Node

    def asks(self, resource: str) -> float:
        """In the resource's base unit. Kubernetes takes a missing request for the limit."""
        asked, limits = (sub(self.node, "resources", side) for side in ("requests", "limits"))
        return quantity(asked.get(resource, limits.get(resource)))

    @property
    def script(self) -> str:
        return "\n".join(texts(self.node, "command") + texts(self.node, "args"))


@dataclass(frozen=True)
class Pods:
    """Pods of one template. `where`: kind/name and the path of the pod's spec; `holder`: what holds the template, such
    as a JobSpec or a task of Volcano; `name`: of the nearest part around it that has one."""

    where: str
    count: int
    metadata: Node
    spec: Node
    holder: Node
    name: str = ""

    @property
    def held(self) -> str:
        """Kind/name and the path of the holder."""
        return self.where.removesuffix(".template.spec")

    @cached_property
    def containers(self) -> list[Container]:
        """Init containers first; of KServe's predictor its model too."""
        listed = [
            Container(f"{self.where}.{key}[{i}]", row)
            for key in ("initContainers", "containers")
            for i, row in enumerate(rows(self.spec, key))
        ]
        model = sub(self.spec, "model")
        return [*listed, Container(f"{self.where}.model", model)] if model else listed

    @cached_property
    def labels(self) -> dict[str, str]:
        return labels(self.metadata, "labels")

    def asks(self, resource: str) -> float:
        return sum(container.asks(resource) for container in self.containers)

    def limit(self, resource: str) -> float:
        return sum(quantity(at(container.node, "resources", "limits", resource)) for container in self.containers)

    @cached_property
    def gpus(self) -> int:
        return round(self.asks(GPU))

    @cached_property
    def selected(self) -> dict[str, list[str]]:
        """Labels of a node that the pods insist on, and the values that they take."""
        chosen: dict[str, list[str]] = {}
        terms = rows(self.spec, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution",
                     "nodeSelectorTerms")  # fmt: skip
        for row in (row for term in terms for row in rows(term, "matchExpressions")):
            if text(row, "operator") == "In":
                chosen.setdefault(text(row, "key"), []).extend(texts(row, "values"))
        return chosen | {key: [value] for key, value in labels(self.spec, "nodeSelector").items()}

    def tolerates(self, taint: Node) -> bool:
        """Whether a taint of a node leaves them in peace."""
        key, value, effect = (text(taint, name) for name in ("key", "value", "effect"))
        return effect == "PreferNoSchedule" or any(
            text(row, "effect") in {"", effect}
            and (text(row, "key") or key) == key
            and (text(row, "operator") == "Exists" or (text(row, "key") == key and text(row, "value") == value))
            for row in rows(self.spec, "tolerations")
        )

    @cached_property
    def instance(self) -> Instance | None:
        """The machine that they select, if it is one that we know."""
        chosen = self.selected.get(INSTANCE_TYPE, [])
        return INSTANCES.get(chosen[0]) if len(chosen) == 1 else None

    def claims(self) -> list[str]:
        return [n for v in rows(self.spec, "volumes") if (n := text(v, "persistentVolumeClaim", "claimName"))]


@dataclass(frozen=True)
class Workload:
    """An object that makes pods. `kind`: of Volcano's Job VolcanoJob."""

    kind: str
    where: str
    node: Node

    @property
    def spec(self) -> Node:
        return sub(self.node, "spec")

    @cached_property
    def all_pods(self) -> list[Pods]:
        if self.kind in ("Pod", "InferenceService"):
            path = ("spec",) if self.kind == "Pod" else ("spec", "predictor")
            spec = sub(self.node, *path)
            return [Pods(where(self.node, ".".join(path)), 1, sub(self.node, "metadata"), spec, spec)]
        return list(_templates(self.spec, where(self.node, "spec"), 1))

    @cached_property
    def pods(self) -> list[Pods]:
        """Of the gang: without the one that submits a RayJob."""
        return [pods for pods in self.all_pods if ".submitterPodTemplate." not in pods.where]

    @property
    def jobs(self) -> list[Pods]:
        """Those of a batch/v1 JobSpec: of a Job, or within a JobSet."""
        return self.all_pods if self.kind in ("Job", "JobSet") else []

    @property
    def scripts(self) -> list[tuple[str, str]]:
        """Place and text of all that it runs, the entrypoint of a RayJob included."""
        commands = [(f"{c.where}.command", c.script) for p in self.all_pods for c in p.containers]
        return [*commands, (f"{self.where} spec.entrypoint", text(self.spec, "entrypoint"))]

    @property
    def size(self) -> int:
        """Pods that must meet."""
        return sum(pods.count for pods in self.pods)

    @cached_property
    def trains(self) -> bool:
        asked = any(p.gpus or p.labels.get("app.kubernetes.io/component") == "trainer" for p in self.pods)
        return self.kind in GANGS and (asked or (self.size > 1 and not self.kind.startswith("Ray")))


class Manifests:
    """A set of objects that is looked at together: references are followed within it."""

    def __init__(self, objects: Iterable[Node]) -> None:
        self.objects = [o for top in objects for o in (rows(top, "items") if _is_list(top) else [top])]
        found = [Workload(_kind(obj), where(obj), obj) for obj in self.objects]
        self.workloads = [each for each in found if each.kind in GANGS or each.kind in SERVERS]
        self.trainings = [each for each in self.workloads if each.trains]
        self.gangs = [each for each in self.trainings if each.size > 1]
        self.pods = [pods for each in self.workloads for pods in each.all_pods]

    def of(self, kind: str, group: str = "") -> list[Node]:
        """Objects of a kind, and where the kind's name is used twice, of a group."""
        return [o for o in self.objects if text(o, "kind") == kind and text(o, "apiVersion").startswith(group)]

    def named(self, kind: str, group: str = "") -> dict[tuple[str, str], Node]:
        """Objects of a kind by namespace and name."""
        return {(namespace(o), text(o, "metadata", "name")): o for o in self.of(kind, group)}


def where(node: Node, path: str = "") -> str:
    """Kind/name and path, as a finding gives them."""
    name = repr(text(node, "metadata", "name"))[1:-1] or "(no name)"  # a name may hold anything: one line, please
    return f"{text(node, 'kind') or 'object'}/{name} {path}".rstrip()


def namespace(node: Node) -> str:
    return text(node, "metadata", "namespace") or "default"


def matches(selector: object, known: dict[str, str]) -> bool:
    """Whether a label selector takes these labels."""
    held = {"In": lambda v, vs: v in vs, "NotIn": lambda v, vs: v not in vs, "Exists": lambda v, _: v is not None,
            "DoesNotExist": lambda v, _: v is None}  # fmt: skip
    return labels(selector, "matchLabels").items() <= known.items() and all(
        held.get(text(row, "operator"), lambda v, vs: False)(known.get(text(row, "key")), texts(row, "values"))
        for row in rows(selector, "matchExpressions")
    )


def _templates(node: object, path: str, count: int, name: str = "") -> Iterator[Pods]:
    """Every template of pods below `node`, with the product of the counts on the way."""
    if isinstance(node, list):
        for i, row in enumerate(node):
            yield from _templates(row, f"{path}[{i}]", count, name)
    elif isinstance(node, dict):
        count *= whole(node, "replicas", default=1) * whole(node, "parallelism", default=1)
        name = text(node, "name") or name
        for key, value in node.items():
            if key in ("template", "submitterPodTemplate") and "template" not in sub(value, "spec"):
                yield Pods(f"{path}.{key}.spec", count, sub(value, "metadata"), sub(value, "spec"), node, name)
            else:
                yield from _templates(value, f"{path}.{key}", count, name)


def _kind(node: Node) -> str:
    kind = text(node, "kind")
    return "VolcanoJob" if kind == "Job" and text(node, "apiVersion").startswith("batch.volcano.sh/") else kind


def _is_list(node: Node) -> bool:
    return text(node, "kind").endswith("List") and isinstance(node.get("items"), list)
