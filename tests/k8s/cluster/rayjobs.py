"""KubeRay (1.7), small: a RayJob becomes a head pod, idle workers and a submitter pod that runs the entrypoint.

There is no Ray here: what a head would run as a driver the submitter runs itself, with the head's environment. Not:
cluster selectors, dashboards, autoscaling, submission modes.
"""

from __future__ import annotations

import copy
import shlex

import yaml

from .kinds import Object
from .objects import age_s, condition, create, deleting, ended, labels, now, owned, phase, place, set_status, suspended
from .storage import Storage

OVER = ("Complete", "Failed")
IDLE = ["python", "-c", "import signal; signal.pause()"]


def reconcile(storage: Storage) -> None:
    pods = storage.list("Pod")[0]
    for ray in storage.list("RayJob")[0]:
        if not deleting(ray):
            _sync(storage, ray, owned(pods, ray))


def _sync(storage: Storage, ray: Object, pods: list[Object]) -> None:
    spec, status = ray["spec"], ray.get("status") or {}
    deployment = status.get("jobDeploymentStatus", "")
    if deployment in OVER:
        _after(storage, ray, pods)
        return
    if suspended(storage, ray):
        _delete(storage, pods)
        set_status(storage, ray, jobDeploymentStatus="Suspending" if pods else "Suspended", jobStatus="")
        return
    deadline = spec.get("activeDeadlineSeconds")
    if deadline and status.get("startTime") and age_s(status["startTime"]) >= deadline:
        since = f"StartTime: {status['startTime']}. ActiveDeadlineSeconds: {deadline}"
        message = f"The RayJob has passed the activeDeadlineSeconds. {since}"
        _end(storage, ray, "Failed", reason="DeadlineExceeded", message=message)
        return
    if deployment in ("", "Suspended"):
        attempt = status.get("failed", 0)
        cluster = f"{place(ray)[1]}-{attempt:05d}"
        set_status(storage, ray, jobDeploymentStatus="Initializing", rayClusterName=cluster, startTime=now())
        return
    cluster = status["rayClusterName"]
    mine = [p for p in pods if labels(p).get("ray.io/cluster") == cluster]
    if deployment == "Retrying":
        _delete(storage, pods)
        if not pods:
            set_status(storage, ray, jobDeploymentStatus="", jobStatus="")
        return
    members = [p for p in mine if labels(p).get("ray.io/node-type") != "submitter"]
    if not members:
        _cluster(storage, ray, cluster)
        return
    if deployment == "Initializing":
        if all(condition(p, "Ready") for p in members):
            _submitter(storage, ray, cluster)
            set_status(storage, ray, jobDeploymentStatus="Running", jobStatus="RUNNING")
        return
    submitters = [p for p in mine if labels(p).get("ray.io/node-type") == "submitter"]
    heads = [p for p in members if labels(p).get("ray.io/node-type") == "head" and not ended(p) and not deleting(p)]
    if submitters and phase(submitters[0]) == "Succeeded":
        _end(storage, ray, "Complete", jobStatus="SUCCEEDED", message="Job finished successfully.", succeeded=1)
    elif submitters and ended(submitters[0]):
        ends = submitters[0]["status"].get("containerStatuses") or [{}]
        code = ((ends[0].get("state") or {}).get("terminated") or {}).get("exitCode", 1)
        message = (
            f"Job entrypoint command failed with exit code {code}, last available logs (truncated to 20,000 chars):\n"
        )
        _fail(storage, ray, "AppFailed", message)
    elif not heads or not submitters:
        # Without its head a Ray cluster and the job on it are gone; the operator can't tell why.
        _fail(storage, ray, "JobStatusCheckTimeoutExceeded", "Job status check timeout exceeded: the head pod is gone")


def _fail(storage: Storage, ray: Object, reason: str, message: str) -> None:
    failed = (ray.get("status") or {}).get("failed", 0) + 1
    if failed <= ray["spec"].get("backoffLimit", 0):
        set_status(storage, ray, jobDeploymentStatus="Retrying", jobStatus="FAILED", failed=failed, message=message)
        return
    _end(storage, ray, "Failed", jobStatus="FAILED", reason=reason, message=message, failed=failed)


def _end(storage: Storage, ray: Object, deployment: str, **fields: object) -> None:
    set_status(storage, ray, jobDeploymentStatus=deployment, endTime=now(), **fields)


def _after(storage: Storage, ray: Object, pods: list[Object]) -> None:
    spec = ray["spec"]
    if not spec.get("shutdownAfterJobFinishes") or age_s(ray["status"]["endTime"]) < spec.get(
        "ttlSecondsAfterFinished", 0
    ):
        return
    # The submitter's pod stays for its log, as its Kubernetes Job does.
    _delete(storage, [p for p in pods if labels(p).get("ray.io/node-type") != "submitter"])


def _cluster(storage: Storage, ray: Object, cluster: str) -> None:
    groups = ray["spec"]["rayClusterSpec"]
    _pod(storage, ray, groups["headGroupSpec"]["template"], f"{cluster}-head-", cluster, "head", IDLE)
    for group in groups.get("workerGroupSpecs") or []:
        for _ in range(group.get("replicas", 1)):
            _pod(storage, ray, group["template"], f"{cluster}-{group['groupName']}-worker-", cluster, "worker", IDLE)


def _submitter(storage: Storage, ray: Object, cluster: str) -> None:
    head = ray["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]
    template = copy.deepcopy(
        ray["spec"].get("submitterPodTemplate") or {"metadata": head.get("metadata") or {}, "spec": head["spec"]}
    )
    runtime = yaml.safe_load(ray["spec"].get("runtimeEnvYAML") or "") or {}
    env = [{"name": k, "value": str(v)} for k, v in (runtime.get("env_vars") or {}).items()]
    container = template["spec"]["containers"][0]
    container["env"] = [*(head["spec"]["containers"][0].get("env") or []), *(container.get("env") or []), *env]
    container.pop("resources", None)
    template["spec"]["restartPolicy"] = "Never"
    command = shlex.split(ray["spec"]["entrypoint"])
    _pod(storage, ray, template, f"{place(ray)[1]}-", cluster, "submitter", command)


def _pod(
    storage: Storage, ray: Object, template: Object, prefix: str, cluster: str, role: str, command: list[str]
) -> Object:
    template = copy.deepcopy(template)
    meta, spec = template.get("metadata") or {}, template["spec"]
    marks = {"ray.io/cluster": cluster, "ray.io/node-type": role, "ray.io/originated-from-cr-name": place(ray)[1]}
    spec["containers"][0] |= {"command": command, "args": []}
    metadata = {"generateName": prefix, "annotations": meta.get("annotations") or {}}
    metadata["labels"] = (meta.get("labels") or {}) | marks
    return create(storage, "Pod", ray, metadata, spec=spec)


def _delete(storage: Storage, pods: list[Object]) -> None:
    for pod in pods:
        if not deleting(pod):
            storage.delete("Pod", *place(pod))
