"""Manifests as the rules see them: objects by kind, and the pods that each workload makes.

Owns where each kind keeps its pod templates and how many pods it makes of one. Judges nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from k8s.instances import Instance, instance
from k8s.lint.tree import Node, labels, quantity, rows, sub, text, texts, whole

GPU = "nvidia.com/gpu"
EFA = "vpc.amazonaws.com/efa"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
MACHINE_FAMILY = "cloud.google.com/gke-accelerator"
CAPACITY = "karpenter.sh/capacity-type"
QUEUE = "kueue.x-k8s.io/queue-name"
ITERATION = "preference-tuning/iteration"
BATCH = ("Job", "JobSet", "VolcanoJob", "RayJob", "RayCluster")


@dataclass(frozen=True)
class Container:
    """One container, sidecars and init containers included."""

    where: str
    node: Node

    @property
    def name(self) -> str:
        return text(self.node, "name")

    @property
    def script(self) -> str:
        """What it runs, as one text."""
        return "\n".join(texts(self.node, "command") + texts(self.node, "args"))

    def env(self) -> Iterator[tuple[str, str, str]]:
        """Place, name and literal value (empty for a reference)."""
        for i, row in enumerate(rows(self.node, "env")):
            yield f"{self.where}.env[{i}]", text(row, "name"), text(row, "value")

    def asks(self, resource: str, side: str = "limits") -> float:
        """In the resource's base unit. Kubernetes takes a missing request for the limit."""
        resources = sub(self.node, "resources")
        found = sub(resources, side).get(resource)
        return quantity(sub(resources, "limits").get(resource) if found is None and side == "requests" else found)


@dataclass(frozen=True)
class Pods:
    """Pods of one template."""

    where: str
    """Kind/name and the path of the pod's spec."""
    count: int
    metadata: Node
    spec: Node

    @cached_property
    def containers(self) -> list[Container]:
        found = [
            Container(f"{self.where}.{key}[{i}]", row)
            for key in ("initContainers", "containers")
            for i, row in enumerate(rows(self.spec, key))
        ]
        model = sub(self.spec, "model")  # KServe's predictor
        return [*found, Container(f"{self.where}.model", model)] if model else found

    @cached_property
    def labels(self) -> dict[str, str]:
        return labels(self.metadata, "labels")

    def asks(self, resource: str, side: str = "limits") -> float:
        return sum(c.asks(resource, side) for c in self.containers)

    @cached_property
    def gpus(self) -> int:
        return round(max(self.asks(GPU), self.asks(GPU, "requests")))

    def selects(self, key: str) -> list[str]:
        """Values of a node's label that the pods insist on."""
        if value := text(self.spec, "nodeSelector", key):
            return [value]
        path = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
        return [
            value
            for term in rows(self.spec, *path)
            for row in rows(term, "matchExpressions")
            if text(row, "key") == key and text(row, "operator") == "In"
            for value in texts(row, "values")
        ]

    @cached_property
    def instance(self) -> Instance | None:
        """The machine that they select, if it is one that we know."""
        chosen = self.selects(INSTANCE_TYPE)
        try:
            return instance(chosen[0]) if len(chosen) == 1 else None
        except ValueError:
            return None

    @property
    def may_be_spot(self) -> bool:
        """Nothing keeps them off spot nodes."""
        return self.selects(CAPACITY) not in (["on-demand"], ["reserved"])

    def volume(self, mount: str) -> Node | None:
        """The volume that a container mounts at `mount`."""
        names = {
            text(row, "name")
            for c in self.containers
            for row in rows(c.node, "volumeMounts")
            if text(row, "mountPath").rstrip("/") == mount
        }
        return next((v for v in rows(self.spec, "volumes") if text(v, "name") in names), None)


@dataclass(frozen=True)
class Job:
    """A batch/v1 JobSpec: of a Job, or within a JobSet."""

    where: str
    name: str
    spec: Node
    pods: Pods

    @property
    def parallelism(self) -> int:
        return whole(self.spec, "parallelism", default=1)


@dataclass(frozen=True)
class Workload:
    """An object that makes pods."""

    kind: str
    """Of Volcano's Job: VolcanoJob."""
    where: str
    object: Node
    pods: Sequence[Pods]
    jobs: Sequence[Job] = ()
    beside: Sequence[Pods] = ()
    """Pods that are none of the gang, such as the client that submits a RayJob."""

    @property
    def spec(self) -> Node:
        return sub(self.object, "spec")

    @property
    def size(self) -> int:
        """Pods that must meet."""
        return sum(p.count for p in self.pods)

    @cached_property
    def trains(self) -> bool:
        if self.kind not in BATCH:
            return False
        asked = any(p.gpus or p.labels.get("app.kubernetes.io/component") == "trainer" for p in self.pods)
        return asked or (self.size > 1 and not self.kind.startswith("Ray"))

    @property
    def gang(self) -> bool:
        return self.trains and self.size > 1


class Manifests:
    """A set of objects that is looked at together: references are followed within it."""

    def __init__(self, objects: Iterable[Node]) -> None:
        self.objects = [o for top in objects for o in (rows(top, "items") if _is_list(top) else [top])]
        self.workloads = [w for o in self.objects if (w := _workload(o)) is not None]

    def of(self, kind: str, group: str = "") -> list[Node]:
        """Objects of a kind, and where the kind's name is used twice, of a group."""
        return [o for o in self.objects if text(o, "kind") == kind and text(o, "apiVersion").startswith(group)]

    @property
    def trainings(self) -> list[Workload]:
        return [w for w in self.workloads if w.trains]

    @property
    def gangs(self) -> list[Workload]:
        return [w for w in self.workloads if w.gang]

    @property
    def pods(self) -> list[Pods]:
        return [p for w in self.workloads for p in (*w.pods, *w.beside)]

    @property
    def trainer_pods(self) -> list[Pods]:
        return [p for w in self.trainings for p in w.pods]


def where(node: Node, path: str = "") -> str:
    """Kind/name and path, as a finding gives them."""
    name = repr(text(node, "metadata", "name"))[1:-1] or "(no name)"  # a name may hold anything: one line, please
    return f"{text(node, 'kind') or 'object'}/{name} {path}".rstrip()


def namespace(node: Node) -> str:
    return text(node, "metadata", "namespace") or "default"


def _is_list(node: Node) -> bool:
    return text(node, "kind").endswith("List") and isinstance(node.get("items"), list)


def _workload(node: Node) -> Workload | None:
    kind, spec, here = text(node, "kind"), sub(node, "spec"), where(node)
    if kind == "Job" and text(node, "apiVersion").startswith("batch.volcano.sh/"):
        tasks = enumerate(rows(spec, "tasks"))
        pods = [_pods(node, f"spec.tasks[{i}].template", t, whole(t, "replicas", default=1)) for i, t in tasks]
        return Workload("VolcanoJob", here, node, pods)
    if kind == "JobSet":
        jobs = [_replicated(node, i, row) for i, row in enumerate(rows(spec, "replicatedJobs"))]
        return Workload(kind, here, node, [job.pods for job in jobs], jobs)
    if kind == "Job":
        pods = _pods(node, "spec.template", spec, whole(spec, "parallelism", default=1))
        return Workload(kind, here, node, [pods], [Job(where(node, "spec"), "", spec, pods)])
    if kind == "CronJob":
        return Workload(
            kind, here, node, [_pods(node, "spec.jobTemplate.spec.template", sub(spec, "jobTemplate", "spec"))]
        )
    if kind in ("RayJob", "RayCluster"):
        path = "spec.rayClusterSpec" if kind == "RayJob" else "spec"
        cluster = sub(spec, "rayClusterSpec") if kind == "RayJob" else spec
        pods = [_pods(node, f"{path}.headGroupSpec.template", sub(cluster, "headGroupSpec"))] if cluster else []
        for i, row in enumerate(rows(cluster, "workerGroupSpecs")):
            count = whole(row, "replicas", default=1)
            pods.append(_pods(node, f"{path}.workerGroupSpecs[{i}].template", row, count))
        submitter = sub(spec, "submitterPodTemplate")
        path = where(node, "spec.submitterPodTemplate.spec")
        beside = [Pods(path, 1, sub(submitter, "metadata"), sub(submitter, "spec"))] if submitter else []
        return Workload(kind, here, node, pods, beside=beside)
    if kind in ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"):
        return Workload(kind, here, node, [_pods(node, "spec.template", spec, whole(spec, "replicas", default=1))])
    if kind == "Pod":
        return Workload(kind, here, node, [Pods(where(node, "spec"), 1, sub(node, "metadata"), spec)])
    if kind == "InferenceService" and (predictor := sub(spec, "predictor")):
        return Workload(kind, here, node, [Pods(where(node, "spec.predictor"), 1, {}, predictor)])
    return None


def _replicated(node: Node, i: int, row: Node) -> Job:
    path, job = f"spec.replicatedJobs[{i}].template.spec", sub(row, "template", "spec")
    count = whole(row, "replicas", default=1) * whole(job, "parallelism", default=1)
    return Job(where(node, path), text(row, "name"), job, _pods(node, f"{path}.template", job, count))


def _pods(node: Node, path: str, holder: Node, count: int = 1) -> Pods:
    template = sub(holder, "template")
    return Pods(where(node, f"{path}.spec"), count, sub(template, "metadata"), sub(template, "spec"))
