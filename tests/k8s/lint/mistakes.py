"""Mistakes, each one field of a right set of manifests changed, deleted or added, by the rule that has to find it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import yaml

from tests.k8s.lint.cases import GONE, Object, find, put

JOB = "spec.replicatedJobs.0.template.spec"
POD = f"{JOB}.template.spec"
BOX = f"{POD}.containers.0"
NODES = "spec.template.spec"
QUOTAS = "spec.resourceGroups.0.flavors.0"
IGNORE = [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]
RESTART = "RestartJobSetAndIgnoreMaxRestarts"


class Mistake(NamedTuple):
    what: str
    edit: Callable[[list[Object]], None]
    backend: str = "jobset"


def of(kind: str, backend: str, what: str, path: str, value: Any, name: str = "") -> Mistake:
    return Mistake(what, lambda objects: put(find(objects, kind, name), path, value), backend)


def jobset(what: str, path: str, value: Any) -> Mistake:
    return of("JobSet", "jobset", what, path, value)


def job(what: str, path: str, value: Any) -> Mistake:
    return of("Job", "job", what, path, value)


def volcano(what: str, path: str, value: Any) -> Mistake:
    return of("Job", "volcano", what, path, value)


def ray(what: str, path: str, value: Any) -> Mistake:
    return of("RayJob", "rayjob", what, path, value)


def static(kind: str, what: str, path: str, value: Any, name: str = "") -> Mistake:
    return of(kind, "jobset", what, path, value, name)


def script(what: str, text: str) -> Mistake:
    return jobset(what, f"{BOX}.command", ["bash", "-c", text])


def more(what: str, text: str, backend: str = "jobset") -> Mistake:
    """Objects more than there should be."""
    return Mistake(what, lambda objects: objects.extend(yaml.safe_load_all(text)), backend)


def budget(what: str, spec: str) -> Mistake:
    head = (
        "{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: g, namespace: preference-tuning}, spec: "
    )
    return more(what, f"{head}{spec}}}")


def reversed_rules(objects: list[Object]) -> None:
    objects[0]["spec"]["failurePolicy"]["rules"].reverse()


def default_backoff(objects: list[Object]) -> None:
    del objects[0]["spec"]["podFailurePolicy"], objects[0]["spec"]["backoffLimit"]


def quota_of_pods(number: int) -> Callable[[list[Object]], None]:
    def give(objects: list[Object]) -> None:
        (group,) = find(objects, "ClusterQueue")["spec"]["resourceGroups"]
        group["coveredResources"].append("pods")
        for flavour in group["flavors"]:
            flavour["resources"].append({"name": "pods", "nominalQuota": number if flavour["name"] == "spot" else 0})

    return give


def namespace_of_no_team(objects: list[Object]) -> None:
    put(find(objects, "ClusterQueue"), "spec.namespaceSelector", {"matchLabels": {"team": "rlhf"}})
    objects.append({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "preference-tuning", "labels": {}}})


CODE = """
apiVersion: v1
kind: Pod
metadata: {{name: code, namespace: preference-tuning}}
spec: {{containers: [{{name: code, image: "d:1", command: [dagster, api, grpc, --port, "4000"], envFrom: [{}]}}]}}
"""
INSTANCE = """
apiVersion: v1
kind: ConfigMap
metadata: {name: dagster-instance, namespace: preference-tuning-platform}
data: {dagster.yaml: "run_launcher: {class: K8sRunLauncher, config: {env_secrets: [dagster-postgresql]}}"}
"""
OTHERS = """
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: launcher-rayjob, namespace: preference-tuning}
rules: [{apiGroups: [ray.io], resources: [rayjobs], verbs: [get, create, patch, delete]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: launcher-rayjob, namespace: preference-tuning}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: launcher-rayjob}
subjects: [{kind: ServiceAccount, name: launcher, namespace: preference-tuning}]
"""

MISTAKES: dict[str, list[Mistake]] = {
    "job-completions": [
        job("1 of 3 (seed 002)", "spec.completions", 1),
        jobset("1 of 3 in a JobSet", f"{JOB}.completions", 1),
        job("no ranks (seed 002)", "spec.completionMode", GONE),
    ],
    "eviction-replaces-one": [
        job("backoffLimit 0 alone (seed 000)", "spec.podFailurePolicy", GONE),
        job("Ignore on DisruptionTarget", "spec.podFailurePolicy.rules", IGNORE),
        jobset("Ignore in a JobSet", f"{JOB}.podFailurePolicy.rules", IGNORE),
        Mistake("the default backoffLimit of 6 (seed 002)", default_backoff, "job"),
    ],
    "jobset-preemption": [
        jobset("no failure policy", "spec.failurePolicy", GONE),
        jobset("no rules: counted", "spec.failurePolicy.rules", GONE),
        jobset("RestartJobSet: counted", "spec.failurePolicy.rules.1.action", "RestartJobSet"),
        jobset("no podFailurePolicy", f"{JOB}.podFailurePolicy", GONE),
        jobset("a rule for another job", "spec.failurePolicy.rules.1.targetReplicatedJobs", ["ps"]),
        jobset("143 is a crash", f"{JOB}.podFailurePolicy.rules.2", GONE),
        jobset("the container has another name", f"{BOX}.name", "nemo"),
        jobset("a crash is not counted", "spec.failurePolicy.rules", [{"name": "all", "action": RESTART}]),
        jobset("a crash replaces one pod", f"{JOB}.backoffLimit", 3),
    ],
    "jobset-exit-64": [
        jobset("64 is retried", "spec.failurePolicy.rules.0", GONE),
        Mistake("64 after the rule of pre-emption", reversed_rules),
        jobset("64 is not in the message", f"{JOB}.podFailurePolicy.rules.0", GONE),
        jobset("65 is not", f"{JOB}.podFailurePolicy.rules.0.onExitCodes.values", [64]),
        jobset("no such pattern", "spec.failurePolicy.rules.0.onJobFailureMessagePatterns", ["*64"]),
        job("64 is tried six times", "spec", {"parallelism": 1, "template": {"spec": {"containers": [
            {"name": "trainer", "resources": {"limits": {"nvidia.com/gpu": 1}}}]}}}),
    ],
    "volcano-policies": [
        volcano("64 after PodFailed", "spec.policies", [
            {"event": "PodFailed", "action": "RestartJob"}, {"event": "PodEvicted", "action": "RestartJob"},
            {"exitCode": 64, "action": "AbortJob"}]),
        volcano("no policy for 64", "spec.policies.0", GONE),
        volcano("no policies (seed 002)", "spec.policies", GONE),
        volcano("RestartPod", "spec.policies.2.action", "RestartPod"),
        volcano("a task's policy first", "spec.tasks.0.policies", [{"event": "*", "action": "RestartTask"}]),
    ],
    "volcano-max-retry": [volcano("3 (seed 002)", "spec.maxRetry", GONE)],
    "exits-0-when-preempted": [
        script("a trap that exits 0", "trap 'save; exit 0' TERM\npython train.py"),
        script("a trap in double quotes", 'trap "save && exit 0" SIGTERM\nexec python train.py'),
        script("|| true", "python -m train --config /c || true"),
        script("exit 0 at the end", "python train.py\necho done\nexit 0\n"),
        jobset("a preStop hook that kills", f"{BOX}.lifecycle.preStop.exec.command", ["sh", "-c", "pkill -9 python"]),
        ray("|| true after the entrypoint", "spec.entrypoint", "python -m train /c || true"),
        script("a shell around the trainer (seed 000)", "set -e\nnvidia-smi\npython run.py --x\n"),
        script("a shell and a last word", "torchrun train.py; ray stop"),
    ],
    "unfenced": [
        jobset("a command", f"{BOX}.command", ["python", "-m", "pipeline.training", "/checkpoints/plan.json"]),
        ray("an entrypoint", "spec.entrypoint", "python -m pipeline.training /c/plan.json"),
    ],
    "budget-blocks-drain": [
        static("PodDisruptionBudget", "maxUnavailable 0", "spec.maxUnavailable", 0),
        budget("100%", '{minAvailable: "100%", selector: {matchLabels: {app: champion}}}'),
        budget("all pods of the namespace", "{minAvailable: 3, selector: {}}"),
        budget("a whole gang", "{minAvailable: 3, selector: {matchLabels: {app.kubernetes.io/component: trainer}}}"),
    ],
    "over-node": [
        jobset("2 TiB of a p5en", f"{BOX}.resources.limits.memory", "2Ti"),
        jobset("16 GPUs of 8", f'{BOX}.resources.limits."nvidia.com/gpu"', 16),
        jobset("192 of 191.45 cores", f"{BOX}.resources.requests.cpu", "192"),
    ],
    "efa-missing": [
        jobset("none (seed 002)", f"{BOX}.resources", {"limits": {"nvidia.com/gpu": 8, "memory": "1600Gi"}}),
        jobset("4 of 16", f'{BOX}.resources.limits."vpc.amazonaws.com/efa"', 4),
    ],
    "no-shm": [
        jobset("none (seed 002)", f"{POD}.volumes.1", GONE),
        jobset("on disk", f"{POD}.volumes.1", {"name": "shm", "emptyDir": {}}),
    ],
    "claim-not-shared": [static("PersistentVolumeClaim", "one node's", "spec.accessModes", ["ReadWriteOnce"])],
    "image-floating": [
        static("Deployment", "latest", f"{NODES}.containers.0.image", "localhost:5000/server:latest"),
        static("Deployment", "no tag", f"{NODES}.containers.0.image", "localhost:5000/server"),
        jobset("latest in a gang (seed 000)", f"{BOX}.image", "nemo-rl:latest"),
    ],
    "capacity-spelling": [
        jobset("Spot, in a selector", f'{POD}.nodeSelector."karpenter.sh/capacity-type"', "Spot"),
        static("NodePool", "Spot, in a pool", f"{NODES}.requirements.0.values", ["Spot"]),
        jobset("a label (seed 002)", f'{JOB}.template.metadata.labels."karpenter.sh/capacity-type"', "spot"),
    ],
    "several-zones": [
        static("NodePool", "two (seed 002)", f"{NODES}.requirements.2.values", ["us-east-2a", "us-east-2b"]),
        static("NodePool", "any", f"{NODES}.requirements.2", GONE),
    ],
    "pool-limits": [static("NodePool", "none (seed 002)", "spec.limits", GONE)],
    "drift-budget": [
        static("NodePool", "the default disruption", "spec.disruption", GONE),
        static("NodePool", "of the underused", "spec.disruption.consolidationPolicy", "WhenEmptyOrUnderutilized"),
        static("NodePool", "empty nodes stay", "spec.disruption.consolidateAfter", "Never"),
        static("NodePool", "no budgets (seed 002)", "spec.disruption.budgets", GONE),
        static("NodePool", "for drift alone", "spec.disruption.budgets.0.reasons", ["Drifted"]),
    ],
    "no-pool": [
        static("NodePool", "another instance type", f"{NODES}.requirements.1.values", ["p5.48xlarge"]),
        static("NodePool", "all but that instance type", f"{NODES}.requirements.1",
               {"key": "node.kubernetes.io/instance-type", "operator": "NotIn", "values": ["p5en.48xlarge"]}),
        static("NodePool", "another capacity", f"{NODES}.requirements.0.values", ["on-demand"]),
        static("NodePool", "a taint that nobody tolerates", f"{NODES}.taints.0.key", "team"),
        static("NodePool", "limits for two nodes of three", 'spec.limits."nvidia.com/gpu"', 16),
        jobset("a label that no pool gives", f"{POD}.nodeSelector.fabric", "efa"),
        jobset("another effect is tolerated", f"{POD}.tolerations",
               [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute"}]),
    ],
    "flavour-without-pool": [
        static("ResourceFlavor", "another value", 'spec.nodeLabels."preference-tuning/pool"', "research", "spot"),
        static("ResourceFlavor", "a label of nobody's", "spec.nodeLabels.fabric", "efa", "spot"),
    ],
    "flavour-takes-others": [static("ResourceFlavor", "a flavour of any node", "spec", {}, "spot")],
    "quota-too-small": [
        static("ClusterQueue", "EFA is not covered", f"{QUOTAS}.resources.3", GONE),
        static("ClusterQueue", "two of three nodes", f"{QUOTAS}.resources.2.nominalQuota", 16),
        static("ClusterQueue", "the quota is another capacity's", f"{QUOTAS}.name", "on-demand"),
        static("ResourceFlavor", "on-demand", 'spec.nodeLabels."karpenter.sh/capacity-type"', "on-demand", "spot"),
        static("ResourceFlavor", "a taint that nobody tolerates", "spec.nodeTaints",
               [{"key": "team", "value": "a", "effect": "NoSchedule"}], "spot"),
        Mistake("two pods of a gang of three", quota_of_pods(2)),
        Mistake("no pod left for the submitter", quota_of_pods(3), "rayjob"),
        jobset("a disk that is not covered", f"{BOX}.resources.requests.ephemeral-storage", "100Gi"),
    ],
    "queue-closed": [
        static("ClusterQueue", "on hold", "spec.stopPolicy", "HoldAndDrain"),
        static("LocalQueue", "a local queue on hold", "spec.stopPolicy", "Hold"),
        static("LocalQueue", "a ClusterQueue that is not there", "spec.clusterQueue", "gpus"),
        jobset("another namespace's queue", "metadata.namespace", "research"),
        static("ClusterQueue", "for no namespace (the default)", "spec.namespaceSelector", GONE),
        static("ClusterQueue", "for another namespace", "spec.namespaceSelector",
               {"matchLabels": {"kubernetes.io/metadata.name": "research"}}),
        static("ClusterQueue", "for all others", "spec.namespaceSelector.matchExpressions",
               [{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["preference-tuning"]}]),
        Mistake("a namespace without the label that the queue wants", namespace_of_no_team),
    ],
    "no-right-to-launch": [more(backend, OTHERS, backend) for backend in ("jobset", "volcano")],
    "binding-dangling": [
        static("RoleBinding", "a role that is not there", "roleRef.name", "launchers"),
        static("RoleBinding", "an account of no namespace", "subjects.0.namespace", GONE),
    ],
    "mark-keys": [
        more("a code location without the keys", CODE.format("{secretRef: {name: endpoints}}")),
        more("keys that may be missing", CODE.format("{secretRef: {name: mark-keys, optional: true}}")),
        more("runs without the keys", INSTANCE),
    ],
    "route-backend-missing": [
        static("HTTPRoute", "a Service that is not there", "spec.rules.0.backendRefs.0.name", "champion-v2"),
        static("HTTPRoute", "no port", "spec.rules.0.backendRefs.0.port", GONE),
    ],
}  # fmt: skip
