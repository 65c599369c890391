"""The resources that the tests' API server serves, and the one exception that it answers with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """A resource that the server serves."""

    group: str  # "" for core
    version: str
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """As the API's messages name it: `pods`, `jobsets.jobset.x-k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def qualified(self) -> str:
        """As the API's messages of invalid objects name it: `Pod`, `Job.batch`."""
        return f"{self.kind}.{self.group}" if self.group else self.kind


class Refused(Exception):
    """What the API server answers instead of an object: becomes a `Status` with this code, reason and message."""

    def __init__(self, code: int, reason: str, message: str, details: Object | None = None) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code, self.reason, self.message, self.details = code, reason, message, details or {}

    def status(self) -> Object:
        """The body of the answer."""
        status: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        status |= {"message": self.message} | ({"reason": self.reason} if self.reason else {})
        return status | ({"details": self.details} if self.details else {}) | {"code": self.code}


class NoSuchPath(Refused):
    """Nothing is served there (a definition is not installed): the one answer that is no `Status`."""

    def __init__(self) -> None:
        super().__init__(404, "", "404 page not found\n")

    def status(self) -> Any:
        return self.message


CORE = "Pod Service Event ConfigMap Secret ServiceAccount PersistentVolumeClaim LimitRange ResourceQuota"
NAMESPACED = {
    "batch/v1": "Job CronJob",
    "apps/v1": "Deployment StatefulSet DaemonSet",
    "policy/v1": "PodDisruptionBudget",
    "rbac.authorization.k8s.io/v1": "Role RoleBinding",
    "networking.k8s.io/v1": "NetworkPolicy Ingress",
    "coordination.k8s.io/v1": "Lease",
    "discovery.k8s.io/v1": "EndpointSlice",
    "jobset.x-k8s.io/v1alpha2": "JobSet",
    "kueue.x-k8s.io/v1beta2": "LocalQueue Workload",
    "scheduling.volcano.sh/v1beta1": "PodGroup",
    "ray.io/v1": "RayJob RayCluster",
    "gateway.networking.k8s.io/v1": "HTTPRoute Gateway",
    "keda.sh/v1alpha1": "ScaledObject",
    "serving.kserve.io/v1beta1": "InferenceService",
    "monitoring.coreos.com/v1": "PrometheusRule ServiceMonitor PodMonitor",
}
CLUSTER_WIDE = {
    "v1": "Namespace Node PersistentVolume",
    "rbac.authorization.k8s.io/v1": "ClusterRole ClusterRoleBinding",
    "storage.k8s.io/v1": "StorageClass CSIDriver",
    "scheduling.k8s.io/v1": "PriorityClass",
    "kueue.x-k8s.io/v1beta2": "ClusterQueue ResourceFlavor WorkloadPriorityClass",
    "scheduling.volcano.sh/v1beta1": "Queue",
    "karpenter.sh/v1": "NodePool NodeClaim",
    "karpenter.k8s.aws/v1": "EC2NodeClass",
}


def _plural(kind: str) -> str:
    """As Kubernetes and controller-gen spell it."""
    word = kind.lower()
    if word.endswith(("s", "ss")):
        return word + "es"
    return word[:-1] + "ies" if word.endswith("y") and word[-2] not in "aeiou" else word + "s"


def _table() -> dict[str, Kind]:
    table = {"VolcanoJob": Kind("batch.volcano.sh", "v1alpha1", "Job", "jobs")}
    for namespaced, versions in ((True, {"v1": CORE} | NAMESPACED), (False, CLUSTER_WIDE)):
        for api_version, kinds in versions.items():
            group, _, version = api_version.rpartition("/")
            for kind in kinds.split():
                table[kind] = Kind(group, version, kind, _plural(kind), namespaced)
    return table


KINDS: dict[str, Kind] = _table()
"""By kind; Volcano's Job is "VolcanoJob"."""
_OF = {(k.api_version, k.kind): name for name, k in KINDS.items()}
_AT = {(k.api_version, k.plural): name for name, k in KINDS.items()}

CUSTOM = frozenset(name for name, k in KINDS.items() if "." in k.group and not k.group.endswith(".k8s.io")) | {
    name for name, k in KINDS.items() if k.group in ("jobset.x-k8s.io", "kueue.x-k8s.io", "gateway.networking.k8s.io")
}
"""Resources of custom resource definitions: the API server has fewer favours for them."""


def built_in(api_version: str) -> bool:
    """Whether the API server serves it without a custom resource definition."""
    return any(k.api_version == api_version for name, k in KINDS.items() if name not in CUSTOM)


def kind_of(obj: Object) -> str:
    """The key in KINDS of an object ("" for one that isn't served)."""
    return _OF.get((str(obj.get("apiVersion", "")), str(obj.get("kind", ""))), "")


def kind_at(api_version: str, plural: str) -> str:
    """The key in KINDS of a path's resource ("" for one that isn't served)."""
    return _AT.get((api_version, plural), "")
