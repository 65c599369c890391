"""What a run that was taken over would send instead of a gang: each a single change, and the rule meant for it."""

from collections.abc import Callable
from typing import Any

Change = Callable[[Any], object]
IMAGE = "registry.example.com/preference-tuning/trainer"
DIGEST = "@sha256:" + "1" * 64


def at(obj: Any, path: str) -> Any:
    for step in path.split(".") if path else ():
        obj = obj[int(step)] if isinstance(obj, list) else obj[step]
    return obj


def put(path: str, **fields: Any) -> Change:
    """Fields set at a path of the object."""
    return lambda obj: at(obj, path).update(fields)


def value(path: str, key: str, new: Any) -> Change:
    return lambda obj: at(obj, path).update({key: new})


def drop(path: str, key: str) -> Change:
    return lambda obj: at(obj, path).pop(key)


def add(path: str, item: Any) -> Change:
    return lambda obj: at(obj, path).append(item)


def secret(box: str, name: str, key: str) -> Change:
    """A variable of a Secret's key."""
    return add(f"{box}.env", {"name": "K", "valueFrom": {"secretKeyRef": {"name": name, "key": key}}})


def volume(pod: str, **kind: Any) -> Change:
    return add(f"{pod}.volumes", {"name": "v", **kind})


def rename(path: str, key: str) -> Change:
    """To what is not a gang's, also where the object names itself."""

    def change(obj: Any) -> None:
        obj["metadata"]["name"] = at(obj, path)[key] = "dagster-code"

    return change


JOB = "spec.replicatedJobs.0.template.spec"
POD = f"{JOB}.template.spec"
BOX = f"{POD}.containers.0"
LABELS = "metadata.labels"
HEAD, WORKERS = "spec.rayClusterSpec.headGroupSpec", "spec.rayClusterSpec.workerGroupSpecs.0"
TASK = "spec.tasks.0"
COMPONENT = "app.kubernetes.io/component"

JOBSETS: list[tuple[str, Change, str]] = [
    ("another's name", rename("spec.network", "subdomain"), "gang-name"),
    ("an image of elsewhere", put(BOX, image=f"docker.io/library/python{DIGEST}"), "gang-image"),
    ("an image by tag", put(BOX, image=f"{IMAGE}:latest"), "gang-image"),
    ("an image by tag and digest elsewhere", put(BOX, image=f"{IMAGE}@evil/x{DIGEST}"), "gang-image"),
    ("the launcher's account", put(POD, serviceAccountName="launcher"), "gang-account"),
    ("another account by its old name", put(POD, serviceAccount="launcher"), "gang-account"),
    ("its account's token", put(POD, automountServiceAccountToken=True), "gang-account"),
    ("no queue", drop(LABELS, "kueue.x-k8s.io/queue-name"), "gang-queue"),
    ("another queue", value(LABELS, "kueue.x-k8s.io/queue-name", "platform"), "gang-queue"),
    ("a priority", value(LABELS, "kueue.x-k8s.io/priority-class", "urgent"), "gang-queue"),
    ("every taint", add(f"{POD}.tolerations", {"operator": "Exists"}), "gang-tolerations"),
    ("no eviction", add(f"{POD}.tolerations", {"key": "nvidia.com/gpu", "effect": "NoExecute"}), "gang-tolerations"),
    ("the keys of the marks", secret(BOX, "mark-keys", "K"), "gang-secrets"),
    ("a Secret as environment", put(BOX, envFrom=[{"secretRef": {"name": "endpoints"}}]), "gang-secrets"),
    ("a Secret as files", volume(POD, secret={"secretName": "endpoints"}), "gang-volumes"),
    (
        "a token of the API",
        volume(POD, projected={"sources": [{"serviceAccountToken": {"path": "x"}}]}),
        "gang-volumes",
    ),
    ("the node's files", volume(POD, hostPath={"path": "/"}), "gang-volumes"),
    ("another's claim", volume(POD, persistentVolumeClaim={"claimName": "mlflow"}), "gang-volumes"),
    ("the node's network", put(POD, hostNetwork=True), "gang-pod"),
    ("a node by name", put(POD, nodeName="control-plane-0"), "gang-pod"),
    ("a pull secret", put(POD, imagePullSecrets=[{"name": "registry"}]), "gang-pod"),
    ("a container before it", put(POD, initContainers=[{"name": "x", "image": "x"}]), "gang-pod"),
    ("a container beside it", add(f"{POD}.containers", {"name": "x", "image": "x"}), "gang-pod"),
    ("a scheduler of its own", put(POD, schedulerName="mine"), "gang-pod"),
    ("a port of the node", put(BOX, ports=[{"containerPort": 80, "hostPort": 80}]), "gang-container"),
    ("a hook", put(BOX, lifecycle={"postStart": {"exec": {"command": ["sh"]}}}), "gang-container"),
    ("privilege", put(f"{BOX}.securityContext", privileged=True), "gang-privilege"),
    ("escalation", put(f"{BOX}.securityContext", allowPrivilegeEscalation=True), "gang-privilege"),
    ("a capability", value(f"{BOX}.securityContext.capabilities", "add", ["SYS_ADMIN"]), "gang-privilege"),
    ("root", put(f"{POD}.securityContext", runAsUser=0), "gang-privilege"),
    ("root allowed", put(f"{POD}.securityContext", runAsNonRoot=False), "gang-privilege"),
    ("no seccomp profile", put(f"{POD}.securityContext", seccompProfile={"type": "Unconfined"}), "gang-privilege"),
    ("a sysctl", put(f"{POD}.securityContext", sysctls=[{"name": "kernel.msgmax", "value": "1"}]), "gang-privilege"),
    ("a run's label", value(f"{JOB}.template.metadata.labels", COMPONENT, "run_worker"), "gang-labels"),
    ("another's Service", put("spec.network", subdomain="dagster-code"), "gang-jobset"),
    ("another manager", put("spec", managedBy="example.com/mine"), "gang-jobset"),
    ("another manager of its Job", put(JOB, managedBy="example.com/mine"), "gang-job"),
    ("pods of others", put(JOB, manualSelector=True), "gang-job"),
]
RAYJOBS: list[tuple[str, Change, str]] = [
    ("a load balancer", put(HEAD, serviceType="LoadBalancer"), "gang-ray"),
    ("a Service of its choice", put(HEAD, headService={"spec": {"externalIPs": ["10.0.0.1"]}}), "gang-ray"),
    ("an ingress", put(HEAD, enableIngress=True), "gang-ray"),
    ("another's cluster", put("spec", clusterSelector={"ray.io/cluster": "x"}), "gang-ray"),
    ("the operator's submitter", drop("spec", "submitterPodTemplate"), "gang-ray"),
    ("a worker's image", put(f"{WORKERS}.template.spec.containers.0", image="x"), "gang-image"),
    ("the submitter's account", put("spec.submitterPodTemplate.spec", serviceAccountName="launcher"), "gang-account"),
    ("the head on the node's network", put(f"{HEAD}.template.spec", hostNetwork=True), "gang-pod"),
]
VOLCANOS: list[tuple[str, Change, str]] = [
    ("a name of the server's", lambda obj: obj["metadata"].update(name="", generateName="train-"), "gang-name"),
    ("a key pair for its pods", put("spec.plugins", ssh=[]), "gang-volcano"),
    ("a claim made for it", put("spec", volumes=[{"mountPath": "/x", "volumeClaim": {}}]), "gang-volcano"),
    ("a field of its tasks", put(TASK, dependsOn={"name": ["x"]}), "gang-volcano"),
    ("no gang scheduler", put("spec", schedulerName="default-scheduler"), "gang-volcano"),
    ("a Secret", put(f"{TASK}.template.spec.containers.0", envFrom=[{"secretRef": {"name": "x"}}]), "gang-secrets"),
]
HOSTILE = {
    "jobset-p5en-spot": JOBSETS,
    "rayjob-eks": RAYJOBS,
    "volcano-p5en": VOLCANOS,
}
"""By golden gang."""
RUN_POD, RUN_BOX = "spec.template.spec", "spec.template.spec.containers.0"
HOSTILE_RUNS: list[tuple[str, Change, str]] = [
    ("a gang's name", value("metadata", "name", "train-a-1"), "run-name"),
    ("an image of elsewhere", put(RUN_BOX, image=f"docker.io/library/python{DIGEST}"), "run-image"),
    ("the trainer's image", put(RUN_BOX, image=f"{IMAGE}{DIGEST}"), "run-image"),
    ("an image by tag", put(RUN_BOX, image="preference-tuning/dagster:latest"), "run-image"),
    ("another account", put(RUN_POD, serviceAccountName="code-location"), "run-account"),
    ("the registry's database", add(f"{RUN_BOX}.envFrom", {"secretRef": {"name": "mlflow-postgresql"}}), "run-secrets"),
    ("a Secret as files", volume(RUN_POD, secret={"secretName": "x"}), "run-volumes"),
    ("the node's files", volume(RUN_POD, hostPath={"path": "/"}), "run-volumes"),
    ("another's claim", volume(RUN_POD, persistentVolumeClaim={"claimName": "mlflow"}), "run-volumes"),
    ("the node's network", put(RUN_POD, hostNetwork=True), "run-pod"),
    ("a scheduler of its own", put(RUN_POD, schedulerName="mine"), "run-pod"),
    ("nodes of gangs", put(RUN_POD, tolerations=[{"operator": "Exists"}]), "run-pod"),
    ("a container beside it", add(f"{RUN_POD}.containers", {"name": "x", "image": "x"}), "run-pod"),
    ("a port of the node", put(RUN_BOX, ports=[{"hostPort": 80}]), "run-container"),
    ("privilege", put(f"{RUN_BOX}.securityContext", privileged=True), "run-privilege"),
    ("escalation", put(f"{RUN_BOX}.securityContext", allowPrivilegeEscalation=True), "run-privilege"),
    ("a capability", value(f"{RUN_BOX}.securityContext.capabilities", "add", ["SYS_ADMIN"]), "run-privilege"),
    ("root allowed", put(f"{RUN_POD}.securityContext", runAsNonRoot=False), "run-privilege"),
    ("a sysctl", put(f"{RUN_POD}.securityContext", sysctls=[{"name": "kernel.msgmax", "value": "1"}]), "run-privilege"),
    ("a server's label", value("spec.template.metadata.labels", COMPONENT, "code-location"), "run-labels"),
    ("many pods", put("spec", parallelism=50), "run-job"),
    ("another manager", put("spec", managedBy="example.com/mine"), "run-job"),
]
