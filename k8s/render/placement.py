"""Which nodes a gang's pods go to: instance type, capacity, taints, one pod on each node, GKE's extra networks."""

from collections.abc import Mapping
from typing import Any

from k8s.gang import Gang

PLAN = "preference-tuning/plan"
"""The label by which the pods of a gang, and of its earlier attempts, know each other."""
SPOT = "cloud.google.com/gke-spot"
ACCELERATORS = {"B200": "nvidia-b200", "H200": "nvidia-h200-141gb", "H100": "nvidia-h100-mega-80gb"}
"""GKE's label cloud.google.com/gke-accelerator, by device."""
RDMA = ("a3-ultragpu-8g", "a4-highgpu-8g")
"""Google's machines with a second host interface and eight for GPUDirect RDMA."""


def placement(gang: Gang) -> dict[str, Any]:
    """Node selector and tolerations of the pod's spec. Empty for instances of any cloud: any node does."""
    machine, capacity = gang.instance, gang.settings.capacity
    if machine.cloud == "any":
        return {}
    selector = {"node.kubernetes.io/instance-type": machine.name}
    # The device plugins' taint has the value true on our node pools and present on GKE's. No blanket toleration: a pod
    # that tolerates karpenter.sh/disrupted is never drained, and dies with its node.
    tolerations = [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "preference-tuning/training", "operator": "Equal", "value": "true", "effect": "NoSchedule"},
    ]
    if machine.cloud == "gcp":
        selector["cloud.google.com/gke-accelerator"] = ACCELERATORS[machine.gpu]
        if capacity == "spot":
            selector[SPOT] = "true"
        if capacity != "on_demand":
            tolerations.append({"key": SPOT, "operator": "Equal", "value": "true", "effect": "NoSchedule"})
    elif capacity != "spot_first":  # then Karpenter decides, by the weights of its pools
        selector["karpenter.sh/capacity-type"] = {"spot": "spot", "on_demand": "on-demand"}[capacity]
    return {"nodeSelector": selector, "tolerations": tolerations}


def affinity(gang: Gang, *expressions: Mapping[str, Any]) -> dict[str, Any]:
    """Affinity of the pod's spec: one pod of the gang on each node. Empty for instances of any cloud.

    `expressions`: on labels, where not all pods of the gang are meant.
    """
    if gang.instance.cloud == "any":
        return {}
    peers: dict[str, Any] = {"matchLabels": {PLAN: plan_label(gang)}}
    if expressions:
        peers["matchExpressions"] = [dict(expression) for expression in expressions]
    apart = [{"labelSelector": peers, "topologyKey": "kubernetes.io/hostname"}]
    wanted: dict[str, Any] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": apart}}
    if gang.instance.cloud == "gcp" and gang.settings.capacity == "on_demand":
        # No label says that a node of GKE is not spot, so no selector can ask for it.
        terms = [{"matchExpressions": [{"key": SPOT, "operator": "DoesNotExist"}]}]
        wanted["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"affinity": wanted}


def plan_label(gang: Gang) -> str:
    """Value of PLAN: as much of the digest as is legible in a label of 63 characters."""
    return gang.plan_digest[:40]


def networks(gang: Gang) -> dict[str, str]:
    """Annotations that join a pod to the networks between GPUs, named as in GKE's guide. AWS has a resource for it."""
    if gang.nodes == 1 or gang.instance.name not in RDMA:
        return {}
    joined = [("eth0", "default"), ("eth1", "gvnic-1"), *((f"eth{2 + i}", f"rdma-{i}") for i in range(8))]
    pairs = ",".join(f'{{"interfaceName":"{name}","network":"{network}"}}' for name, network in joined)
    return {"networking.gke.io/default-interface": "eth0", "networking.gke.io/interfaces": f"[{pairs}]"}
