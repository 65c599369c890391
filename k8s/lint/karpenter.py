"""Rules on Karpenter's NodePools and EC2NodeClasses for training, and on how pods choose and tolerate nodes.

"Read": in the documentation or the sources of Karpenter 1.14.
"""

from __future__ import annotations

from k8s.instances import instance
from k8s.lint.manifests import Manifests
from k8s.lint.pods import CAPACITY, INSTANCE_TYPE, MACHINE_FAMILY, where
from k8s.lint.rules import Hits, rule
from k8s.lint.tree import Node, rows, sub, text, texts

ZONE = "topology.kubernetes.io/zone"
CAPACITIES = frozenset({"spot", "on-demand", "reserved"})
LEAVING = frozenset(
    {"karpenter.sh/disrupted", "karpenter.sh/disruption", "cloud.google.com/impending-node-termination"}
)


def _requires(pool: Node, key: str) -> list[str]:
    constraints = rows(pool, "spec", "template", "spec", "requirements")
    return [
        v
        for row in constraints
        if text(row, "key") == key and text(row, "operator") == "In"
        for v in texts(row, "values")
    ]


def gpu_pools(seen: Manifests) -> list[Node]:
    """Pools for trainings: by our label, or without it by their taint or instance types."""

    def trains(pool: Node) -> bool:
        template = sub(pool, "spec", "template")
        taints = {text(t, "key") for t in rows(template, "spec", "taints")}
        purpose = text(template, "metadata", "labels", "preference-tuning/pool")
        devices = "nvidia.com/gpu" in taints or any(_efa(name) for name in _requires(pool, INSTANCE_TYPE))
        return purpose == "training" or (not purpose and devices)

    return [pool for pool in seen.of("NodePool", "karpenter.sh/") if trains(pool)]


def _efa(name: str) -> int:
    try:
        return instance(name).efa
    except ValueError:
        return 0


@rule("error", fix="Give nodeClassRef group karpenter.k8s.aws, kind EC2NodeClass and name.")
def node_class_ref(seen: Manifests) -> Hits:
    """Karpenter's v1 refuses a reference without group, kind and name, and does not find a class of another group: the
    pool never makes a node."""
    for pool in seen.of("NodePool", "karpenter.sh/"):
        class_ref = sub(pool, "spec", "template", "spec", "nodeClassRef")
        if missing := [key for key in ("group", "kind", "name") if not text(class_ref, key)]:
            yield where(pool, "spec.template.spec.nodeClassRef"), f"no {', no '.join(missing)}"
        elif text(class_ref, "kind") == "EC2NodeClass" and (group := text(class_ref, "group")) != "karpenter.k8s.aws":
            yield where(pool, "spec.template.spec.nodeClassRef.group"), group


@rule("error", fix="Add the EC2NodeClass to the manifests, or name one of theirs.")
def node_class_missing(seen: Manifests) -> Hits:
    """A pool whose class is not there is not ready, and its pods wait without a node."""
    there = {text(c, "metadata", "name") for c in seen.of("EC2NodeClass")}
    for pool in seen.of("NodePool", "karpenter.sh/"):
        class_ref = sub(pool, "spec", "template", "spec", "nodeClassRef")
        if text(class_ref, "kind") in {"", "EC2NodeClass"} and (name := text(class_ref, "name")) not in there:
            yield where(pool, "spec.template.spec.nodeClassRef.name"), f"{name!r}, there are {sorted(there) or 'none'}"


@rule("error", fix="Add role (or instanceProfile), amiSelectorTerms, subnetSelectorTerms, securityGroupSelectorTerms.")
def node_class_incomplete(seen: Manifests) -> Hits:
    """Without them the class is not ready: Karpenter cannot launch an instance from it."""
    for node_class in seen.of("EC2NodeClass"):
        spec = sub(node_class, "spec")
        terms = ("amiSelectorTerms", "subnetSelectorTerms", "securityGroupSelectorTerms")
        missing = [key for key in terms if not rows(spec, key)]
        if not text(spec, "role") and not text(spec, "instanceProfile"):
            missing.append("role")
        if missing:
            yield where(node_class, "spec"), f"no {', no '.join(missing)}"


@rule("error", fix="Set instanceStorePolicy: RAID0.")
def instance_store(seen: Manifests) -> Hits:
    """Without it pods live on a root disk of 17 Gi allocatable, which the trainer's image alone fills, beside idle NVMe
    disks."""
    pools = {text(p, "spec", "template", "spec", "nodeClassRef", "name") for p in gpu_pools(seen)}
    for node_class in seen.of("EC2NodeClass"):
        if text(node_class, "metadata", "name") in pools and text(node_class, "spec", "instanceStorePolicy") != "RAID0":
            yield (
                where(node_class, "spec.instanceStorePolicy"),
                text(node_class, "spec", "instanceStorePolicy") or "not set",
            )


@rule("error", fix="Set consolidationPolicy: WhenEmpty and a consolidateAfter.")
def consolidation(seen: Manifests) -> Hits:
    """The default WhenEmptyOrUnderutilized moves a training to a cheaper node in the middle of a step."""
    for pool in gpu_pools(seen):
        disruption = sub(pool, "spec", "disruption")
        if (policy := text(disruption, "consolidationPolicy")) != "WhenEmpty":
            yield where(pool, "spec.disruption.consolidationPolicy"), policy or "not set: WhenEmptyOrUnderutilized"
        elif text(disruption, "consolidateAfter") in {"", "Never"}:
            yield where(pool, "spec.disruption.consolidateAfter"), "empty nodes are kept, and paid for"


@rule("error", fix='Add budgets: [{nodes: "0", reasons: [Drifted, Underutilized]}].')
def drift_budget(seen: Manifests) -> Hits:
    """A new AMI drifts every node: Karpenter then replaces those of a running gang, up to a tenth at once."""
    for pool in gpu_pools(seen):
        budgets = [b for b in rows(pool, "spec", "disruption", "budgets") if text(b, "nodes") in {"0", "0%"}]
        stopped = {reason for b in budgets for reason in (texts(b, "reasons") or ["Drifted", "Underutilized"])}
        if missing := sorted({"Drifted", "Underutilized"} - stopped):
            yield where(pool, "spec.disruption.budgets"), f"nothing stops {' and '.join(missing)}"


@rule("warning", fix="Set template.spec.expireAfter: Never.")
def node_expiry(seen: Manifests) -> Hits:
    """A node of 720 hours (the default) is drained, budgets or not: expiry is forceful (read)."""
    for pool in gpu_pools(seen):
        if (after := text(pool, "spec", "template", "spec", "expireAfter")) != "Never":
            yield where(pool, "spec.template.spec.expireAfter"), after or "not set: 720h"


@rule("error", fix="Set limits: nvidia.com/gpu to what a run may take.")
def pool_limits(seen: Manifests) -> Hits:
    """One wrong number of nodes in a recipe buys a fleet."""
    for pool in gpu_pools(seen):
        if not sub(pool, "spec", "limits"):
            yield where(pool, "spec.limits"), "none"


@rule("error", fix=f"Require one {ZONE}; make a pool for each zone that you want to fall back to.")
def several_zones(seen: Manifests) -> Hits:
    """EFA does not cross zones: a gang over two of them never connects, or falls back to TCP."""
    for pool in gpu_pools(seen):
        zones = _requires(pool, ZONE)
        if len(zones) != 1 and any(_efa(name) for name in _requires(pool, INSTANCE_TYPE)):
            yield where(pool, "spec.template.spec.requirements"), f"zones {zones or 'of all subnets'}"


@rule("warning", fix="Taint the pool nvidia.com/gpu=true:NoSchedule.")
def pool_untainted(seen: Manifests) -> Hits:
    """Any pod lands on a node of eight devices and keeps it from being empty."""
    for pool in gpu_pools(seen):
        if not rows(pool, "spec", "template", "spec", "taints"):
            yield where(pool, "spec.template.spec.taints"), "none"


@rule("error", fix=f"Put {CAPACITY} into nodeSelector.")
def capacity_label(seen: Manifests) -> Hits:
    """A label on the pod chooses nothing: the gang runs wherever it fits, at the on-demand price."""
    for pods in seen.pods:
        if value := pods.labels.get(CAPACITY):
            yield f"{pods.where} (template.metadata.labels)", f"{CAPACITY}: {value}"


@rule("error", fix="Write spot, on-demand or reserved.")
def capacity_spelling(seen: Manifests) -> Hits:
    """The value is compared as it stands, and the API server takes any: 'Spot' matches no node, and the pod waits."""
    for pods in seen.pods:
        for value in pods.selects(CAPACITY):
            if value not in CAPACITIES:
                yield f"{pods.where}.nodeSelector", f"{CAPACITY}: {value}"
    for pool in seen.of("NodePool", "karpenter.sh/"):
        for value in _requires(pool, CAPACITY):
            if value not in CAPACITIES:
                yield where(pool, "spec.template.spec.requirements"), f"{CAPACITY}: {value}"


@rule("error", fix="Name the taints of your training nodes, each with its key.")
def tolerates_everything(seen: Manifests) -> Hits:
    """Pods that tolerate the taint of a leaving node are not drained from it: no SIGTERM, no checkpoint. New ones are
    placed on a node that is about to go."""
    for workload in seen.workloads:
        for pods in workload.all_pods if workload.kind != "DaemonSet" else []:
            for i, row in enumerate(rows(pods.spec, "tolerations")):
                key = text(row, "key")
                if key in LEAVING or (not key and text(row, "operator") == "Exists"):
                    yield f"{pods.where}.tolerations[{i}]", f"tolerates {key or 'everything'}"


@rule("warning", fix=f"Select {INSTANCE_TYPE} (EKS) or {MACHINE_FAMILY} (GKE).")
def instance_unselected(seen: Manifests) -> Hits:
    """A gang is as fast as its slowest node, and devices of different kinds do not share one memory plan."""
    for pods in seen.trainer_pods:
        if pods.gpus and not pods.selects(INSTANCE_TYPE) and not pods.selects(MACHINE_FAMILY):
            yield f"{pods.where}.nodeSelector", f"{pods.gpus} GPUs of any kind"
