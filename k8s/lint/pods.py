"""What makes pods, as the rules see it: containers, pods of one template, and the workloads that own them.

Owns what a rule may ask of one of them. How they are read from each kind of object is workloads.py's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from k8s.instances import Instance, instance
from k8s.lint.tree import Node, labels, quantity, rows, sub, text, texts, whole

GPU = "nvidia.com/gpu"
EFA = "vpc.amazonaws.com/efa"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
MACHINE_FAMILY = "cloud.google.com/gke-accelerator"
CAPACITY = "karpenter.sh/capacity-type"
GKE_SPOT = "cloud.google.com/gke-spot"
QUEUE = "kueue.x-k8s.io/queue-name"
ITERATION = "preference-tuning/iteration"
BATCH = ("Job", "JobSet", "VolcanoJob", "RayJob", "RayCluster")


@dataclass(frozen=True)
class Container:
    """One container, sidecars and init containers included; or what a RayJob submits, which runs in one of them."""

    where: str
    node: Node
    runs: str = ""
    """The place of what it runs; empty: its command."""

    @property
    def name(self) -> str:
        return text(self.node, "name")

    @property
    def command(self) -> str:
        """The place of what it runs."""
        return self.runs or f"{self.where}.command"

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
        amount = sub(resources, side).get(resource)
        return quantity(sub(resources, "limits").get(resource) if amount is None and side == "requests" else amount)


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
        pod_containers = [
            Container(f"{self.where}.{key}[{i}]", row)
            for key in ("initContainers", "containers")
            for i, row in enumerate(rows(self.spec, key))
        ]
        model = sub(self.spec, "model")  # KServe's predictor
        return [*pod_containers, Container(f"{self.where}.model", model)] if model else pod_containers

    @cached_property
    def labels(self) -> dict[str, str]:
        return labels(self.metadata, "labels")

    def asks(self, resource: str, side: str = "limits") -> float:
        return sum(c.asks(resource, side) for c in self.containers)

    @cached_property
    def gpus(self) -> int:
        return round(max(self.asks(GPU), self.asks(GPU, "requests")))

    @cached_property
    def selected(self) -> dict[str, list[str]]:
        """Labels of a node that the pods insist on, and the values that they take."""
        chosen: dict[str, list[str]] = {}
        for row in self._affinity:
            if text(row, "operator") == "In":
                chosen.setdefault(text(row, "key"), []).extend(texts(row, "values"))
        return chosen | {key: [value] for key, value in labels(self.spec, "nodeSelector").items()}

    def selects(self, key: str) -> list[str]:
        """Values of a node's label that the pods insist on."""
        return self.selected.get(key, [])

    def allows(self, node_labels: dict[str, str]) -> bool:
        """Whether they may be on nodes of which these labels are known and no others: what they ask of other labels
        counts as met."""
        if any(node_labels.get(k, v) != v for k, v in labels(self.spec, "nodeSelector").items()):
            return False
        terms = [
            [row for row in rows(term, "matchExpressions") if text(row, "key") in node_labels] for term in self._terms
        ]
        # Terms are alternatives, the expressions of one are not.
        return not terms or any(all(_met(row, node_labels[text(row, "key")]) for row in term) for term in terms)

    def tolerates(self, taint: Node, more: Sequence[Node] = ()) -> bool:
        """Whether a taint of a node leaves them in peace. `more`: tolerations beside their own."""
        if text(taint, "effect") == "PreferNoSchedule":
            return True
        for row in [*rows(self.spec, "tolerations"), *more]:
            exists, effect = text(row, "operator") == "Exists", text(row, "effect")
            key = text(row, "key") or (text(taint, "key") if exists else "")
            same = exists or text(row, "value") == text(taint, "value")
            if same and key == text(taint, "key") and effect in {"", text(taint, "effect")}:
                return True
        return False

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
        # No label says that a node of GKE is not spot: pods ask for its absence.
        refused = any(
            text(row, "key") == GKE_SPOT and text(row, "operator") == "DoesNotExist" for row in self._affinity
        )
        return not refused and self.selects(CAPACITY) not in (["on-demand"], ["reserved"])

    @property
    def on_gke(self) -> bool:
        return bool(self.selects(GKE_SPOT) or (self.instance and self.instance.cloud == "gcp"))

    @property
    def _affinity(self) -> list[Node]:
        return [row for term in self._terms for row in rows(term, "matchExpressions")]

    @property
    def _terms(self) -> list[Node]:
        path = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
        return rows(self.spec, *path)

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
    submits: Sequence[Container] = ()
    """What a RayJob runs in its cluster, as a container with Ray's runtime environment."""

    @property
    def spec(self) -> Node:
        return sub(self.object, "spec")

    @property
    def all_pods(self) -> list[Pods]:
        return [*self.pods, *self.beside]

    @property
    def commands(self) -> list[Container]:
        """All that it runs."""
        return [*(c for p in self.all_pods for c in p.containers), *self.submits]

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


def _met(expression: Node, value: str) -> bool:
    """Whether a label with this value meets an expression of a node selector term."""
    values, operator = texts(expression, "values"), text(expression, "operator")
    if operator in ("Gt", "Lt"):
        bound, there = (quantity(values[0] if values else None), quantity(value))
        return there > bound if operator == "Gt" else there < bound
    return {"In": value in values, "NotIn": value not in values, "DoesNotExist": False}.get(operator, True)


def where(node: Node, path: str = "") -> str:
    """Kind/name and path, as a finding gives them."""
    name = repr(text(node, "metadata", "name"))[1:-1] or "(no name)"  # a name may hold anything: one line, please
    return f"{text(node, 'kind') or 'object'}/{name} {path}".rstrip()


def namespace(node: Node) -> str:
    return text(node, "metadata", "namespace") or "default"
