"""Kueue (0.19), small: one ClusterQueue's quota decides which jobs run; the others stay suspended and have no pods.

A job with a queue's name gets a Workload, waits its turn, is admitted whole (flavour's node selector injected) and is
evicted when its pods aren't all ready in time. Not: cohorts, borrowing, preemption, admission checks.
"""

from __future__ import annotations

import copy
import hashlib
import time
from dataclasses import dataclass, field

from .flavors import Usage, add, assign, usage
from .jobs import finished
from .kinds import Object, kind_of
from .objects import QUEUE, condition, create, deleting, labels, owned, place, set_status, with_condition
from .storage import Storage

JOBS = ("JobSet", "Job", "RayJob")


@dataclass
class Kueue:
    pods_ready_timeout_s: float | None = None
    """waitForPodsReady; None: it isn't on."""
    requeue_s: float = 0.2
    """After an eviction. Kueue: 60 s, then twice that, and so on."""
    backoff_limit: int | None = None
    """Evictions that a workload may suffer before it is deactivated; None: any number."""
    _since: dict[str, float] = field(default_factory=dict[str, float])
    """By Workload's uid: when it was admitted or evicted."""
    _order: dict[str, int] = field(default_factory=dict[str, int])
    """By Workload's uid: its turn. Creation times are whole seconds, too coarse for a test."""

    def reconcile(self, storage: Storage) -> None:
        if not storage.list("ClusterQueue")[0]:
            return
        workloads = storage.list("Workload")[0]
        for kind in JOBS:
            for job in storage.list(kind)[0]:
                if QUEUE in labels(job) and not deleting(job):
                    mine = owned(workloads, job)
                    self._job(storage, job, mine[0] if mine else _workload(storage, job))
        self._admit(storage)

    def _job(self, storage: Storage, job: Object, workload: Object) -> None:
        if end := _finished(job):
            if not condition(workload, "Finished"):
                reason = "Succeeded" if end["type"] in ("Complete", "Completed") else "Failed"
                conditions = with_condition(workload, "Finished", "True", reason, end["message"])
                set_status(storage, workload, conditions=conditions)
            return
        admission = (workload.get("status") or {}).get("admission")
        if admission is None or condition(workload, "Evicted"):
            if job["spec"].get("suspend") is not True:
                _resume(storage, job, workload, suspend=True)
            elif admission and not _active(storage, job):
                conditions = with_condition(
                    workload, "QuotaReserved", "False", "Pending", _message(workload, "Evicted")
                )
                message = "The workload has no reservation"
                conditions = with_condition(_having(conditions), "Admitted", "False", "NoReservation", message)
                set_status(storage, workload, conditions=conditions, admission=None)
        elif job["spec"].get("suspend") is not False:
            _resume(storage, job, workload, suspend=False)
        else:
            self._pods_ready(storage, job, workload)

    def _pods_ready(self, storage: Storage, job: Object, workload: Object) -> None:
        uid, ready = workload["metadata"]["uid"], _ready(job)
        was = condition(workload, "PodsReady")
        if ready:
            output = ("PodsReady", "True", "Started", "All pods reached readiness and the workload is running")
            self._since.pop(uid, None)
        elif was:
            output = ("PodsReady", "False", "WaitForRecovery", "At least one pod has failed, waiting for recovery")
        else:
            output = ("PodsReady", "False", "WaitForStart", "Not all pods are ready or succeeded")
        if was and not ready:
            self._since[uid] = time.monotonic()
        elif not ready and any(c["type"] == "PodsReady" for c in workload["status"]["conditions"]):
            late = (
                self.pods_ready_timeout_s is not None
                and time.monotonic() - self._since.setdefault(uid, time.monotonic()) > self.pods_ready_timeout_s
            )
            if late:
                self._evict(storage, workload)
            return
        set_status(storage, workload, conditions=with_condition(workload, *output))

    def _evict(self, storage: Storage, workload: Object) -> None:
        message = "Exceeded the PodsReady timeout {}/{}".format(*place(workload))
        count = ((workload["status"].get("requeueState") or {}).get("count", 0)) + 1
        conditions = with_condition(workload, "Evicted", "True", "PodsReadyTimeout", message)
        conditions = with_condition(_having(conditions), "Requeued", "False", "PodsReadyTimeout", message)
        evicted = set_status(storage, workload, conditions=conditions, requeueState={"count": count})
        self._since[workload["metadata"]["uid"]] = time.monotonic()
        if self.backoff_limit is not None and count > self.backoff_limit:
            namespace, name = place(evicted)
            storage.merge("Workload", namespace, name, {"spec": {"active": False}})

    def _admit(self, storage: Storage) -> None:
        """First in, first out; one that doesn't fit lets the next pass, unless the queue is strict."""
        queues = {place(q)[1]: q for q in storage.list("ClusterQueue")[0]}
        local = {place(q): q["spec"]["clusterQueue"] for q in storage.list("LocalQueue")[0]}
        flavors = {place(f)[1]: f for f in storage.list("ResourceFlavor")[0]}
        workloads = storage.list("Workload")[0]
        workloads.sort(key=lambda w: self._order.setdefault(w["metadata"]["uid"], len(self._order)))
        used = usage(w for w in workloads if not condition(w, "Finished"))
        stuck: set[str] = set()
        for workload in workloads:
            status = workload.get("status") or {}
            if status.get("admission") or condition(workload, "Finished") or not workload["spec"].get("active", True):
                continue
            if time.monotonic() - self._since.get(workload["metadata"]["uid"], -1e9) < self.requeue_s:
                continue
            wanted = workload["spec"]["queueName"]
            queue = local.get((place(workload)[0], wanted))
            if queue is None or queue not in queues:
                what = f"LocalQueue {wanted} doesn't exist" if queue is None else f"ClusterQueue {queue} doesn't exist"
                _pending(storage, workload, "Inadmissible", what)
                continue
            if queue in stuck:
                continue
            assignments, problem = assign(queues[queue], flavors, used, workload["spec"]["podSets"])
            if problem:
                _pending(storage, workload, "Pending", problem)
                if queues[queue]["spec"].get("queueingStrategy") == "StrictFIFO":
                    stuck.add(queue)
                continue
            self._reserve(storage, workload, queue, assignments, used)

    def _reserve(self, storage: Storage, workload: Object, queue: str, assignments: list[Object], used: Usage) -> None:
        admission = {"clusterQueue": queue, "podSetAssignments": assignments}
        add(used, admission)
        lines = [
            ("QuotaReserved", "QuotaReserved", f"Quota reserved in ClusterQueue {queue}, wait time since queued was 0s")
        ]
        lines += [("Admitted", "Admitted", f"Admitted by ClusterQueue {queue}, wait time since reservation was 0s")]
        conditions = (workload.get("status") or {}).get("conditions") or []
        for type_, reason, message in lines:
            conditions = with_condition(_having(conditions), type_, "True", reason, message)
        if condition(workload, "Evicted"):
            message = f"Previously: {_message(workload, 'Evicted')}"
            conditions = with_condition(_having(conditions), "Evicted", "False", "QuotaReserved", message)
        conditions = [c for c in conditions if c["type"] != "PodsReady"]
        set_status(storage, workload, conditions=conditions, admission=admission)
        self._since[workload["metadata"]["uid"]] = time.monotonic()


def _workload(storage: Storage, job: Object) -> Object:
    namespace, name = place(job)
    kind = job["kind"].lower()
    suffix = hashlib.sha1(f"{kind}/{namespace}/{name}/{job['metadata']['uid']}".encode()).hexdigest()[:5]
    metadata = {"name": f"{kind}-{name}-{suffix}", "labels": {"kueue.x-k8s.io/job-uid": job["metadata"]["uid"]}}
    sets = [{"name": n, "count": count, "template": copy.deepcopy(t)} for n, count, t in _pod_sets(job)]
    spec = {"queueName": labels(job)[QUEUE], "active": True, "podSets": sets}
    return create(storage, "Workload", job, metadata, spec=spec)


def _pod_sets(job: Object) -> list[tuple[str, int, Object]]:
    """(name, pods, template, by reference) of each homogeneous part of a job."""
    spec = job["spec"]
    if job["kind"] == "JobSet":
        parts = [(r["name"], r.get("replicas", 1), r["template"]["spec"]) for r in spec["replicatedJobs"]]
        return [(name, replicas * _pods(inner), inner["template"]) for name, replicas, inner in parts]
    if job["kind"] == "Job":
        return [("main", _pods(spec), spec["template"])]
    cluster = spec["rayClusterSpec"]
    workers = [(g["groupName"], g.get("replicas", 1), g["template"]) for g in cluster.get("workerGroupSpecs") or []]
    return [("head", 1, cluster["headGroupSpec"]["template"]), *workers]


def _pods(spec: Object) -> int:
    parallelism = spec.get("parallelism", 1)
    return min(parallelism, spec.get("completions") or parallelism)


def _resume(storage: Storage, job: Object, workload: Object, suspend: bool) -> None:
    """Lets a job run on the flavours it was given, or stops it and takes them back."""
    admission = (workload.get("status") or {}).get("admission") or {"podSetAssignments": []}
    flavors = {place(f)[1]: f for f in storage.list("ResourceFlavor")[0]}
    given = {a["name"]: a["flavors"].values() for a in admission["podSetAssignments"]}
    original = {s["name"]: s["template"] for s in workload["spec"]["podSets"]}
    if suspend:  # first: the template of what runs is immutable
        job["spec"]["suspend"] = True
        job = storage.update(kind_of(job), place(job)[0], job)
    for name, _, template in _pod_sets(job):
        selector = dict(original[name]["spec"].get("nodeSelector") or {})
        for flavor in [] if suspend else given[name]:
            selector |= flavors[flavor]["spec"].get("nodeLabels") or {}
        if selector or "nodeSelector" in template["spec"]:
            template["spec"]["nodeSelector"] = selector
    job["spec"]["suspend"] = suspend
    storage.update(kind_of(job), place(job)[0], job)


def _finished(job: Object) -> Object:
    if job["kind"] == "RayJob":
        status = job.get("status") or {}
        ends = {"Complete": "Complete", "Failed": "Failed"}
        type_ = ends.get(status.get("jobDeploymentStatus", ""))
        return {"type": type_, "message": status.get("message", "")} if type_ else {}
    return condition(job, "Completed") or finished(job)


def _ready(job: Object) -> bool:
    status, spec = job.get("status") or {}, job["spec"]
    if job["kind"] == "RayJob":
        return status.get("jobDeploymentStatus") == "Running"
    if job["kind"] == "Job":
        return status.get("ready", 0) + status.get("succeeded", 0) >= _pods(spec)
    counts = {r["name"]: r.get("replicas", 1) for r in spec["replicatedJobs"]}
    rows = status.get("replicatedJobsStatus") or []
    return bool(rows) and all(r["ready"] + r["succeeded"] >= counts[r["name"]] for r in rows)


def _active(storage: Storage, job: Object) -> bool:
    """Whether a suspended job still has pods."""
    status = job.get("status") or {}
    if job["kind"] == "JobSet":
        return any((j.get("status") or {}).get("active") or (j.get("status") or {}).get("terminating")
                   for j in owned(storage.list("Job")[0], job))  # fmt: skip
    return bool(status.get("active") or status.get("terminating"))


def _pending(storage: Storage, workload: Object, reason: str, message: str) -> None:
    set_status(storage, workload, conditions=with_condition(workload, "QuotaReserved", "False", reason, message))


def _having(conditions: list[Object]) -> Object:
    return {"status": {"conditions": conditions}}


def _message(workload: Object, type_: str) -> str:
    return str(condition(workload, type_).get("message", ""))
