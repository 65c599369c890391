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
    ("the launcher's account", put(POD, serviceAccountName="launcher"), "gang-account"),
    ("its account's token", put(POD, automountServiceAccountToken=True), "gang-account"),
    ("no queue", drop(LABELS, "kueue.x-k8s.io/queue-name"), "gang-queue"),
    ("every taint", add(f"{POD}.tolerations", {"operator": "Exists"}), "gang-tolerations"),
    ("the keys of the marks", secret(BOX, "mark-keys", "K"), "gang-secrets"),
    ("a Secret as files", volume(POD, secret={"secretName": "endpoints"}), "gang-volumes"),
    ("a foreign claim", volume(POD, persistentVolumeClaim={"claimName": "models"}), "gang-volumes"),
    ("the node's files", volume(POD, hostPath={"path": "/"}), "gang-volumes"),
    ("the node's network", put(POD, hostNetwork=True), "gang-pod"),
    ("a container beside it", add(f"{POD}.containers", {"name": "x", "image": "x"}), "gang-pod"),
    ("a port of the node", put(BOX, ports=[{"containerPort": 80, "hostPort": 80}]), "gang-container"),
    ("privilege", put(f"{BOX}.securityContext", privileged=True), "gang-privilege"),
    ("root allowed", put(f"{POD}.securityContext", runAsNonRoot=False), "gang-privilege"),
    ("a run's label", value(f"{JOB}.template.metadata.labels", COMPONENT, "run_worker"), "gang-labels"),
    ("another's Service", put("spec.network", subdomain="dagster-code"), "gang-jobset"),
    ("another manager of its Job", put(JOB, managedBy="example.com/mine"), "gang-job"),
]
RAYJOBS: list[tuple[str, Change, str]] = [
    ("a load balancer", put(HEAD, serviceType="LoadBalancer"), "gang-ray"),
    ("the operator's submitter", drop("spec", "submitterPodTemplate"), "gang-ray"),
    ("a worker's image", put(f"{WORKERS}.template.spec.containers.0", image="x"), "gang-image"),
    ("the submitter's account", put("spec.submitterPodTemplate.spec", serviceAccountName="launcher"), "gang-account"),
]
VOLCANOS: list[tuple[str, Change, str]] = [
    ("a name of the server's", lambda obj: obj["metadata"].update(name="", generateName="train-"), "gang-name"),
    ("a key pair for its pods", put("spec.plugins", ssh=[]), "gang-volcano"),
]
HOSTILE = {"jobset-p5en-spot": JOBSETS, "rayjob-eks": RAYJOBS, "volcano-p5en": VOLCANOS}
"""By golden gang."""
RUN_POD, RUN_BOX = "spec.template.spec", "spec.template.spec.containers.0"
HOSTILE_RUNS: list[tuple[str, Change, str]] = [
    ("a gang's name", value("metadata", "name", "train-a-1"), "run-name"),
    ("an image of elsewhere", put(RUN_BOX, image=f"docker.io/library/python{DIGEST}"), "run-image"),
    ("another account", put(RUN_POD, serviceAccountName="code-location"), "run-account"),
    ("the registry's database", add(f"{RUN_BOX}.envFrom", {"secretRef": {"name": "mlflow-postgresql"}}), "run-secrets"),
    ("the node's files", volume(RUN_POD, hostPath={"path": "/"}), "run-volumes"),
    ("the node's network", put(RUN_POD, hostNetwork=True), "run-pod"),
    ("a container beside it", add(f"{RUN_POD}.containers", {"name": "x", "image": "x"}), "run-pod"),
    ("a port of the node", put(RUN_BOX, ports=[{"hostPort": 80}]), "run-container"),
    ("privilege", put(f"{RUN_BOX}.securityContext", privileged=True), "run-privilege"),
    ("a server's label", value("spec.template.metadata.labels", COMPONENT, "code-location"), "run-labels"),
    ("many pods", put("spec", parallelism=50), "run-job"),
]
