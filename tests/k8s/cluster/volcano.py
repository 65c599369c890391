"""Volcano (1.15), small: a Job's tasks become pods of one gang, and its policies, in order, say what an event means.

Not: the enqueue action, task dependencies, per-task minAvailable, commands. Gang placement is the scheduler's.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

from .kinds import Object
from .objects import age_s, create, deleting, ended, labels, notes, now, owned, phase, place, set_status
from .scheduler import GROUP
from .storage import Storage

VERSION = "volcano.sh/job-version"
OVER = ("Aborted", "Completed", "Failed", "Terminated")
BECOMES = {
    "RestartJob": "Restarting",
    "AbortJob": "Aborting",
    "TerminateJob": "Terminating",
    "CompleteJob": "Completing",
}
THEN = {"Restarting": "Pending", "Aborting": "Aborted", "Terminating": "Terminated", "Completing": "Completed"}


@dataclass
class Volcano:
    _seen: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    """By the Job's uid: the pods of its current version, so that one that vanished is noticed."""

    def reconcile(self, storage: Storage) -> None:
        pods = storage.list("Pod")[0]
        for job in storage.list("VolcanoJob")[0]:
            if not deleting(job):
                self._sync(storage, job, owned(pods, job))

    def _sync(self, storage: Storage, job: Object, pods: list[Object]) -> None:
        status = job.get("status") or {}
        state, version = (status.get("state") or {}).get("phase", "Pending"), status.get("version", 0)
        if state in OVER:
            ttl = job["spec"].get("ttlSecondsAfterFinished")
            if ttl is not None and age_s(status["state"]["lastTransitionTime"]) >= ttl:
                storage.delete("VolcanoJob", *place(job))
            return
        if state in THEN:
            _kill(storage, pods, everything=state == "Restarting")
            if not [p for p in pods if not ended(p)] and (state != "Restarting" or not pods):
                spent = state == "Restarting" and status.get("retryCount", 0) >= job["spec"].get("maxRetry", 3)
                _record(storage, job, pods, "Failed" if spent else THEN[state])
            return
        mine = [p for p in pods if notes(p).get(VERSION) == str(version)]
        action = self._action(job, mine)
        if action in BECOMES:
            self._seen.pop(job["metadata"]["uid"], None)
            retries = status.get("retryCount", 0) + (action == "RestartJob")
            _record(storage, job, pods, BECOMES[action], version=version + 1, retryCount=retries)
            return
        if not pods or state == "Pending":
            mine = _start(storage, job, mine, version)
        self._seen[job["metadata"]["uid"]] = {p["metadata"]["uid"] for p in mine}
        phases = [phase(p) for p in mine]
        minimum, total = _minimum(job), sum(t.get("replicas", 1) for t in job["spec"]["tasks"])
        if state == "Pending" and sum(p != "Pending" for p in phases) >= minimum:
            state = "Running"
        elif state == "Running" and sum(p in ("Succeeded", "Failed") for p in phases) == total:
            state = "Completed" if phases.count("Succeeded") >= minimum else "Failed"
        _record(storage, job, mine, state)

    def _action(self, job: Object, pods: list[Object]) -> str:
        """Of the first policy that some pod's end answers to."""
        for pod in pods:
            if phase(pod) == "Failed":
                ends = pod.get("status", {}).get("containerStatuses") or [{}]
                code = ((ends[0].get("state") or {}).get("terminated") or {}).get("exitCode", 0)
                if action := _policy(job, labels(pod)["volcano.sh/task-spec"], "PodFailed", code):
                    return action
        alive = {p["metadata"]["uid"] for p in pods}
        if self._seen.get(job["metadata"]["uid"], set()) - alive:
            return _policy(job, "", "PodEvicted", 0)
        for task in job["spec"]["tasks"]:
            done = [p for p in pods if labels(p)["volcano.sh/task-spec"] == task["name"] and phase(p) == "Succeeded"]
            if len(done) == task.get("replicas", 1) and (action := _policy(job, task["name"], "TaskCompleted", 0)):
                return action
        return ""


def _policy(job: Object, task: str, event: str, code: int) -> str:
    """Those of the task, then the Job's; an exit code is only a non-zero one."""
    own = next((t.get("policies") or [] for t in job["spec"]["tasks"] if t["name"] == task), [])
    for policy in [*own, *(job["spec"].get("policies") or [])]:
        events = [*(policy.get("events") or []), policy.get("event")]
        if event in events or "*" in events or (code and policy.get("exitCode") == code):
            return policy["action"]
    return ""


def _minimum(job: Object) -> int:
    return job["spec"].get("minAvailable") or sum(t.get("replicas", 1) for t in job["spec"]["tasks"])


def _kill(storage: Storage, pods: list[Object], everything: bool) -> None:
    for pod in pods:
        if not deleting(pod) and (everything or not ended(pod)):
            storage.delete("Pod", *place(pod))


def _start(storage: Storage, job: Object, pods: list[Object], version: int) -> list[Object]:
    """The gang's pod group, its service and the pods that are missing."""
    namespace, name = place(job)
    group = f"{name}-{job['metadata']['uid']}"
    if not any(place(g)[1] == group for g in storage.list("PodGroup", namespace)[0]):
        spec = {"minMember": _minimum(job), "queue": job["spec"].get("queue", "default")}
        create(storage, "PodGroup", job, {"name": group}, spec=spec)
    plugins = job["spec"].get("plugins") or {}
    if "svc" in plugins and not any(place(s)[1] == name for s in storage.list("Service", namespace)[0]):
        spec = {"clusterIP": "None", "selector": {"volcano.sh/job-name": name}, "publishNotReadyAddresses": True}
        create(storage, "Service", job, {"name": name}, spec=spec)
    there = {place(p)[1] for p in pods}
    for task in job["spec"]["tasks"]:
        for index in range(task.get("replicas", 1)):
            if f"{name}-{task['name']}-{index}" not in there:
                pods = [*pods, _pod(storage, job, task, index, version, group)]
    return pods


def _pod(storage: Storage, job: Object, task: Object, index: int, version: int, group: str) -> Object:
    name = job["metadata"]["name"]
    template = copy.deepcopy(task["template"])
    metadata, spec = template.get("metadata") or {}, template["spec"]
    plugins = job["spec"].get("plugins") or {}
    pod = f"{name}-{task['name']}-{index}"
    hosts = {f"VC_{t['name'].upper()}": [f"{name}-{t['name']}-{i}.{name}" for i in range(t.get("replicas", 1))]
             for t in job["spec"]["tasks"]}  # fmt: skip
    env = [{"name": key, "value": str(index)} for key in ("VK_TASK_INDEX", "VC_TASK_INDEX") if "env" in plugins]
    if "svc" in plugins:
        spec |= {"hostname": pod, "subdomain": name}
        env += [{"name": f"{key}_HOSTS", "value": ",".join(of)} for key, of in hosts.items()]
        env += [{"name": f"{key}_NUM", "value": str(len(of))} for key, of in hosts.items()]
    for container in spec["containers"]:
        container["env"] = [*env, *(container.get("env") or [])]
    spec["schedulerName"] = job["spec"].get("schedulerName") or "volcano"
    marks = {"volcano.sh/job-name": name, "volcano.sh/task-spec": task["name"], "volcano.sh/task-index": str(index)}
    marks |= {
        "volcano.sh/job-namespace": job["metadata"]["namespace"],
        "volcano.sh/queue-name": job["spec"].get("queue", "default"),
    }
    noted = marks | {VERSION: str(version), GROUP: group}
    meta = {"name": pod, "labels": (metadata.get("labels") or {}) | marks}
    meta["annotations"] = (metadata.get("annotations") or {}) | noted
    return create(storage, "Pod", job, meta, spec=spec)


def _record(storage: Storage, job: Object, pods: list[Object], state: str, **fields: int) -> None:
    status = job.get("status") or {}
    old, going = status.get("state") or {}, [p for p in pods if not deleting(p)]
    changes: Object = {"minAvailable": _minimum(job), "version": 0, "retryCount": 0} | status | dict(fields)
    for word in ("Pending", "Running", "Succeeded", "Failed"):
        changes[word.lower()] = sum(phase(p) == word for p in going)
    changes["terminating"] = len(pods) - len(going)
    if old.get("phase") != state:
        changes["state"] = {"phase": state, "lastTransitionTime": now()}
        changes["conditions"] = [*(status.get("conditions") or []), {"status": state, "lastTransitionTime": now()}]
    set_status(storage, job, **changes)
