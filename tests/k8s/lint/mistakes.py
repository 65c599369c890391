"""Mistakes, each one field of a right set of manifests changed, deleted or added, by the rule that has to find it."""

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
        job("no ranks (seed 002)", "spec.completionMode", GONE),
    ],
    "eviction-replaces-one": [
        job("backoffLimit 0 alone (seed 000)", "spec.podFailurePolicy", GONE),
        job("Ignore on DisruptionTarget", "spec.podFailurePolicy.rules", IGNORE),
        Mistake("the default backoffLimit of 6 (seed 002)", default_backoff, "job"),
    ],
    "jobset-preemption": [
        jobset("no failure policy", "spec.failurePolicy", GONE),
        jobset("143 is a crash", f"{JOB}.podFailurePolicy.rules.2", GONE),
        jobset("the container has another name", f"{BOX}.name", "nemo"),
        jobset("a crash is not counted", "spec.failurePolicy.rules", [{"name": "all", "action": RESTART}]),
    ],
    "jobset-exit-64": [
        jobset("64 is retried", "spec.failurePolicy.rules.0", GONE),
        Mistake("64 after the rule of pre-emption", reversed_rules),
        jobset("65 is not", f"{JOB}.podFailurePolicy.rules.0.onExitCodes.values", [64]),
    ],
    "volcano-policies": [
        volcano("no policy for 64", "spec.policies.0", GONE),
        volcano("RestartPod", "spec.policies.2.action", "RestartPod"),
        volcano("a task's policy first", "spec.tasks.0.policies", [{"event": "*", "action": "RestartTask"}]),
    ],
    "volcano-max-retry": [volcano("3 (seed 002)", "spec.maxRetry", GONE)],
    "exits-0-when-preempted": [
        script("a trap that exits 0", "trap 'save; exit 0' TERM\npython train.py"),
        script("|| true", "python -m train --config /c || true"),
        jobset("a preStop hook that kills", f"{BOX}.lifecycle.preStop.exec.command", ["sh", "-c", "pkill -9 python"]),
        script("a shell around the trainer (seed 000)", "set -e\nnvidia-smi\npython run.py --x\n"),
    ],
    "unfenced": [
        jobset("a command", f"{BOX}.command", ["python", "-m", "pipeline.training", "/checkpoints/plan.json"]),
    ],
    "budget-blocks-drain": [
        budget("100%", '{minAvailable: "100%", selector: {matchLabels: {app: champion}}}'),
        budget("a whole gang", "{minAvailable: 3, selector: {matchLabels: {app.kubernetes.io/component: trainer}}}"),
    ],
    "over-node": [
        jobset("2 TiB of a p5en", f"{BOX}.resources.limits.memory", "2Ti"),
        jobset("16 GPUs of 8", f'{BOX}.resources.limits."nvidia.com/gpu"', 16),
    ],
    "efa-missing": [
        jobset("none (seed 002)", f"{BOX}.resources", {"limits": {"nvidia.com/gpu": 8, "memory": "1600Gi"}}),
        jobset("4 of 16", f'{BOX}.resources.limits."vpc.amazonaws.com/efa"', 4),
    ],
    "no-shm": [
        jobset("none (seed 002)", f"{POD}.volumes.1", GONE),
    ],
    "claim-not-shared": [static("PersistentVolumeClaim", "one node's", "spec.accessModes", ["ReadWriteOnce"])],
    "image-floating": [
        static("Deployment", "latest", f"{NODES}.containers.0.image", "localhost:5000/server:latest"),
    ],
    "capacity-spelling": [
        jobset("Spot, in a selector", f'{POD}.nodeSelector."karpenter.sh/capacity-type"', "Spot"),
        jobset("a label (seed 002)", f'{JOB}.template.metadata.labels."karpenter.sh/capacity-type"', "spot"),
    ],
    "several-zones": [
        static("NodePool", "two (seed 002)", f"{NODES}.requirements.2.values", ["us-east-2a", "us-east-2b"]),
    ],
    "pool-limits": [static("NodePool", "none (seed 002)", "spec.limits", GONE)],
    "drift-budget": [
        static("NodePool", "the default disruption", "spec.disruption", GONE),
        static("NodePool", "for drift alone", "spec.disruption.budgets.0.reasons", ["Drifted"]),
    ],
    "no-pool": [
        static("NodePool", "another instance type", f"{NODES}.requirements.1.values", ["p5.48xlarge"]),
        static("NodePool", "a taint that nobody tolerates", f"{NODES}.taints.0.key", "team"),
        jobset("another effect is tolerated", f"{POD}.tolerations",
               [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute"}]),
    ],
    "flavour-without-pool": [
        static("ResourceFlavor", "another value", 'spec.nodeLabels."preference-tuning/pool"', "research", "spot"),
    ],
    "flavour-takes-others": [static("ResourceFlavor", "a flavour of any node", "spec", {}, "spot")],
    "quota-too-small": [
        static("ClusterQueue", "EFA is not covered", f"{QUOTAS}.resources.3", GONE),
        static("ResourceFlavor", "a taint that nobody tolerates", "spec.nodeTaints",
               [{"key": "team", "value": "a", "effect": "NoSchedule"}], "spot"),
        Mistake("no pod left for the submitter", quota_of_pods(3), "rayjob"),
    ],
    "queue-closed": [
        static("ClusterQueue", "on hold", "spec.stopPolicy", "HoldAndDrain"),
        static("LocalQueue", "a ClusterQueue that is not there", "spec.clusterQueue", "gpus"),
        static("ClusterQueue", "for another namespace", "spec.namespaceSelector",
               {"matchLabels": {"kubernetes.io/metadata.name": "research"}}),
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
    ],
    "route-backend-missing": [
        static("HTTPRoute", "a Service that is not there", "spec.rules.0.backendRefs.0.name", "champion-v2"),
        static("HTTPRoute", "no port", "spec.rules.0.backendRefs.0.port", GONE),
    ],
}  # fmt: skip
