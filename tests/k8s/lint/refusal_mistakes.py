"""Mistakes that the API server's own code or a webhook refuses, whatever the schema says."""

from __future__ import annotations

from tests.k8s.lint.cases import GONE
from tests.k8s.lint.edits import JOB, Mistake, box, job, jobset, more, pod, static

NODES = "spec.template.spec"
SERVER = f"{NODES}.containers.0"

REFUSALS: list[Mistake] = [
    box("a quantity with a space", "quantity-invalid", "resources.limits.memory", "1600 Gi"),
    static("ClusterQueue", "a quota in words", "quantity-invalid",
           "spec.resourceGroups.0.flavors.0.resources.1.nominalQuota", "6 TiB"),
    pod("a memory disk of no size", "quantity-invalid", "volumes.1.emptyDir.sizeLimit", "half"),
    static("PersistentVolumeClaim", "a negative size", "quantity-invalid", "spec.resources.requests.storage", "-1Gi"),
    box("more cores asked than allowed", "request-over-limit", "resources.requests.cpu", "400"),
    pod("a negative grace", "pod-refused", "terminationGracePeriodSeconds", -5),
    pod("two volumes of one name", "pod-refused", "volumes.1.name", "data"),
    pod("a value beside Exists", "pod-refused", "tolerations.0.value", "true"),
    box("a mount of nothing", "pod-refused", "volumeMounts.0.name", "datas"),
    box("a port of 0", "pod-refused", "ports", [{"containerPort": 0}]),
    static("Deployment", "a probe that asks nothing", "pod-refused", f"{SERVER}.readinessProbe", {"periodSeconds": 5}),
    job("a success by an index that is not there", "job-refused", "spec.successPolicy.rules.0.succeededIndexes", "0-3"),
    jobset("exit code 0 as a failure", "job-refused", f"{JOB}.podFailurePolicy.rules.0.onExitCodes.values", [0]),
    job("a selector of its own", "job-refused", "spec.selector", {"matchLabels": {"a": "b"}}),
    jobset("a rule's name with a dash", "jobset-refused", "spec.failurePolicy.rules.0.name", "no-retry"),
    jobset("a replicated job in capitals", "jobset-refused", "spec.replicatedJobs.0.name", "Trainer"),
    more("fewer judges at most than at least", "scaling-bounds", """
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {name: judge, namespace: serving}
spec: {scaleTargetRef: {name: champion}, minReplicaCount: 4, maxReplicaCount: 2}
"""),
    more("idle with as many as at least", "scaling-bounds", """
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {name: judge, namespace: serving}
spec: {scaleTargetRef: {name: champion}, minReplicaCount: 2, idleReplicaCount: 2}
"""),
    more("a target that is not there", "scaling-bounds", """
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {name: judge, namespace: serving}
spec: {scaleTargetRef: {name: judge}}
"""),
    more("bounds of KServe", "scaling-bounds", """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: judge, namespace: serving}
spec: {predictor: {minReplicas: 3, maxReplicas: 2, containers: [{name: a}]}}
"""),
    static("Deployment", "labels of another app", "selector-mismatch", "spec.selector.matchLabels", {"app": "canary"}),
    static("Deployment", "a strategy of no such name", "selector-mismatch", "spec.strategy", {"type": "Rolling"}),
    static("Service", "two ports of no name", "service-ports", "spec.ports", [{"port": 1}, {"port": 2}]),
    static("Service", "a port of 70000", "service-ports", "spec.ports", [{"port": 70000}]),
    static("PersistentVolumeClaim", "no size", "storage-refused", "spec.resources", {}),
    more("a volume that is kept for another claim", "storage-refused", """
apiVersion: v1
kind: PersistentVolume
metadata: {name: lustre}
spec: {capacity: {storage: 1Ti}, claimRef: {namespace: preference-tuning, name: other}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: more, namespace: preference-tuning}
spec: {volumeName: lustre, resources: {requests: {storage: 1Ti}}}
"""),
    static("PodDisruptionBudget", "both bounds", "object-refused", "spec.minAvailable", 1),
    static("NodePool", "Gt of a word", "object-refused", f"{NODES}.requirements.2",
           {"key": "karpenter.k8s.aws/instance-cpu", "operator": "Gt", "values": ["many"]}),
    more("an address without its mask", "object-refused", """
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: out, namespace: serving}
spec: {podSelector: {}, egress: [{to: [{ipBlock: {cidr: 10.0.0.1}}]}]}
"""),
    pod("a volume of two kinds", "pod-refused", "volumes.1.persistentVolumeClaim", {"claimName": "checkpoints"}),
    box("a value and a source", "pod-refused", "env.0",
        {"name": "A", "value": "b", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}),
    box("a key of no Secret", "pod-refused", "env.0", {"name": "A", "valueFrom": {"secretKeyRef": {"key": "b"}}}),
    box("a field of no pod", "pod-refused", "env.0",
        {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.label"}}}),
    more("a key with a space", "object-refused", """
apiVersion: v1
kind: ConfigMap
metadata: {name: more, namespace: preference-tuning}
data: {"A B": x}
"""),
    more("a namespace with a dot", "object-refused", "{apiVersion: v1, kind: Namespace, metadata: {name: a.b}}"),
    static("RoleBinding", "a role that is not there", "binding-dangling", "roleRef.name", "launchers"),
    static("RoleBinding", "an account of no namespace", "binding-dangling", "subjects.0.namespace", GONE),
    static("ClusterQueue", "another order", "queue-refused", "spec.resourceGroups.0.coveredResources",
           ["memory", "cpu", "nvidia.com/gpu", "vpc.amazonaws.com/efa"]),
    static("ClusterQueue", "a flavour twice", "queue-refused", "spec.resourceGroups.0.flavors.1.name", "spot"),
    static("ResourceFlavor", "a value of 64 characters", "queue-refused", "spec.nodeLabels.fabric", "a" * 64, "spot"),
]  # fmt: skip
