"""The Job controller: Jobs become pods, and what became of the pods decides the Job.

Reproduces kube-controller-manager 1.36 as far as a training sees it: indexes, back-off, pod failure policy, success
policy, suspension, deadline, time to live, tracking finalizers. Not: per-index back-off, elastic completions.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from .kinds import Object
from .objects import (
    age_s,
    condition,
    create,
    deleting,
    ended,
    event,
    notes,
    now,
    owned,
    owners,
    phase,
    place,
    set_status,
    suspended,
    with_condition,
)
from .pod_limits import forbidden
from .storage import Storage

TRACKING = "batch.kubernetes.io/job-tracking"
INDEX = "batch.kubernetes.io/job-completion-index"


@dataclass
class Jobs:
    backoff_s: float = 0.2
    """Before the first replacement of a failed pod, then twice that, and so on. Kubernetes: 10 s."""
    _failures: dict[str, tuple[int, float]] = field(default_factory=dict[str, tuple[int, float]])
    """By the Job's uid: how many of its pods failed, and when the last did."""

    def reconcile(self, storage: Storage) -> None:
        pods = storage.list("Pod")[0]
        jobs = storage.list("Job")[0]
        for job in jobs:
            self._sync(storage, job, owned(pods, job))
        known = {job["metadata"]["uid"] for job in jobs}
        # An orphan's finalizer is nobody's but ours.
        _release(storage, (p for p in pods if tracked(p) and not any(r["uid"] in known for r in owners(p))))

    def _sync(self, storage: Storage, job: Object, pods: list[Object]) -> None:
        if deleting(job) or finished(job):
            _release(storage, (p for p in pods if tracked(p)))
            _expire(storage, job)
            return
        spec, status = job["spec"], job.get("status") or {}
        active = [p for p in pods if not ended(p) and not deleting(p)]
        terminating = [p for p in pods if not ended(p) and deleting(p)]
        waits = suspended(storage, job)
        done = [p for p in pods if tracked(p) and ended(p)]
        if not _waits_for_the_end(spec) and not waits:
            done += [p for p in terminating if tracked(p)]
        failures = [p for p in done if phase(p) != "Succeeded"]
        counted = [p for p in failures if matching(spec, p)[0] != "Ignore"]
        failed = status.get("failed", 0) + len(counted)
        if counted:
            self._failures[job["metadata"]["uid"]] = (failed, time.monotonic())

        indexes = _completed(status) | {index_of(p) for p in done if phase(p) == "Succeeded"}
        succeeded = len(indexes) if indexed(spec) else status.get("succeeded", 0) + len(done) - len(failures)
        verdict = _verdict(job, failures, failed if counted else 0, indexes)
        if verdict:
            gone = active
        else:
            gone, new = self._manage(job, active, terminating, succeeded, indexes, waits)
            for index in new:
                text = forbidden(storage, *place(job), job["spec"]["template"]["spec"])
                if text:
                    event(storage, job, "Warning", "FailedCreate", f"Error creating: {text}", "job-controller")
                else:
                    create_pod(storage, job, index)
            if succeeded >= wanted(spec) and not active:
                verdict = ("SuccessCriteriaMet", "CompletionsReached", "Reached expected number of succeeded pods")
        if not verdict:  # a pod that goes because the Job waits or shrinks is no failure
            _release(storage, (p for p in gone if tracked(p)))
        for pod in gone:
            storage.delete("Pod", *place(pod))
        conditions = status.get("conditions")
        if verdict:
            conditions = with_condition(job, verdict[0], "True", *verdict[1:])
        elif waits:
            conditions = with_condition(job, "Suspended", "True", "JobSuspended", "Job suspended")
        elif condition(job, "Suspended"):
            conditions = with_condition(job, "Suspended", "False", "JobResumed", "Job resumed")
        # The verdict is on record before the pods that led to it may go.
        start = None if waits else status.get("startTime") or now()
        fields: Object = {
            "conditions": conditions,
            "startTime": start,
            "active": 0 if verdict else len(active) - len(gone),
            "ready": sum(bool(condition(p, "Ready")) for p in active if p not in gone),
            "terminating": len(terminating) + len(gone),
            "succeeded": succeeded or None,
            "failed": failed or None,
            "completedIndexes": ranges(indexes) if indexed(spec) and indexes else None,
        }
        with storage.changed:  # both or neither: a pod is counted once
            job = set_status(storage, job, **fields)
            _release(storage, done)
        if verdict and not active and not terminating:
            _finish(storage, job, verdict)

    def _manage(
        self,
        job: Object,
        active: list[Object],
        terminating: list[Object],
        succeeded: int,
        indexes: set[int],
        waits: bool,
    ) -> tuple[list[Object], list[int]]:
        """The pods to delete and the indexes to start (all -1 where the Job has none)."""
        spec = job["spec"]
        parallelism = spec.get("parallelism", 1)
        # More completions than there are pods to run never start: `parallelism: 3, completions: 1` is ONE pod.
        want = 0 if waits else min(parallelism, max(0, wanted(spec) - succeeded))
        if len(active) > want:
            return sorted(active, key=index_of)[want:], []
        held = terminating if _waits_for_the_end(spec) else []
        failures, last = self._failures.get(job["metadata"]["uid"], (0, 0.0))
        if failures and time.monotonic() - last < self.backoff_s * 2 ** (failures - 1):
            return [], []
        missing = want - len(active) - len(held)
        if not indexed(spec):
            return [], [-1] * missing
        taken = indexes | {index_of(p) for p in active + held}
        return [], [i for i in range(wanted(spec)) if i not in taken][: max(0, missing)]


def indexed(spec: Object) -> bool:
    return spec.get("completionMode") == "Indexed"


def wanted(spec: Object) -> int:
    """Successful pods that complete the Job."""
    return spec.get("completions") or (spec.get("parallelism", 1) if indexed(spec) else 1)


def finished(job: Object) -> Object:
    """The condition that ended a Job."""
    return condition(job, "Complete") or condition(job, "Failed")


def tracked(pod: Object) -> bool:
    return TRACKING in (pod["metadata"].get("finalizers") or [])


def index_of(pod: Object) -> int:
    return int(notes(pod).get(INDEX, -1))


def matching(spec: Object, pod: Object) -> tuple[str, str]:
    """What the pod failure policy does about a failed pod, and its message: the first rule that matches, or Count."""
    namespace, name = place(pod)
    for at, rule in enumerate((spec.get("podFailurePolicy") or {}).get("rules") or []):
        action = rule["action"]
        for container, code in exit_codes(pod):
            wants = rule.get("onExitCodes")
            if wants and wants.get("containerName") in (None, "", container):
                inside = code in wants["values"]
                if inside if wants["operator"] == "In" else not inside:
                    what = f"Container {container} for pod {namespace}/{name} failed with exit code {code}"
                    return action, f"{what} matching {action} rule at index {at}"
        for pattern in rule.get("onPodConditions") or []:
            for result in pod.get("status", {}).get("conditions") or []:
                if (result["type"], result["status"]) == (pattern["type"], pattern.get("status", "True")):
                    return (
                        action,
                        f"Pod {namespace}/{name} has condition {result['type']} matching {action} rule at index {at}",
                    )
    return "Count", ""


def exit_codes(pod: Object) -> list[tuple[str, int]]:
    """(container, code) of each container that ended with another code than 0."""
    statuses = pod.get("status", {}).get("containerStatuses") or []
    ends = [(s["name"], (s.get("state") or {}).get("terminated") or {}) for s in statuses]
    return [(name, end["exitCode"]) for name, end in ends if end.get("exitCode")]


def create_pod(storage: Storage, job: Object, index: int) -> Object:
    """A pod of the Job's template; of a completion index where it isn't -1."""
    template = copy.deepcopy(job["spec"]["template"])
    name, uid = job["metadata"]["name"], job["metadata"]["uid"]
    meta, spec = template.get("metadata") or {}, template["spec"]
    prefix = f"{name}-{index}" if index >= 0 else name
    added = {f"{scope}{key}": value for scope in ("", "batch.kubernetes.io/") for key, value in
             (("job-name", name), ("controller-uid", uid))}  # fmt: skip
    noted: dict[str, str] = {}
    if index >= 0:
        noted = {INDEX: str(index)}
        spec.setdefault("hostname", prefix)
        source = {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX}']"}}
        for container in [*(spec.get("initContainers") or []), *spec["containers"]]:
            container.setdefault("env", []).append({"name": "JOB_COMPLETION_INDEX", "valueFrom": source})
    metadata: Object = {"generateName": f"{prefix}-", "finalizers": [TRACKING]}
    metadata["labels"] = (meta.get("labels") or {}) | added | noted
    metadata["annotations"] = (meta.get("annotations") or {}) | noted
    pod = create(storage, "Pod", job, metadata, spec=spec)
    event(storage, job, "Normal", "SuccessfulCreate", f"Created pod: {pod['metadata']['name']}", "job-controller")
    return pod


def _waits_for_the_end(spec: Object) -> bool:
    """Whether a pod counts, and is replaced, only once it has ended: what a pod failure policy implies."""
    default = "Failed" if spec.get("podFailurePolicy") else "TerminatingOrFailed"
    return (spec.get("podReplacementPolicy") or default) == "Failed"


def _verdict(job: Object, failures: list[Object], failed: int, indexes: set[int]) -> tuple[str, str, str] | None:
    """The interim condition that dooms or crowns a Job: type, reason, message. `failed`: 0 without a new failure."""
    spec = job["spec"]
    for type_ in ("SuccessCriteriaMet", "FailureTarget"):
        if standing := condition(job, type_):
            return type_, standing["reason"], standing["message"]
    for pod in failures:
        action, message = matching(spec, pod)
        if action == "FailJob":
            return "FailureTarget", "PodFailurePolicy", message
    if failed > spec.get("backoffLimit", 6):
        return "FailureTarget", "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    deadline, start = spec.get("activeDeadlineSeconds"), (job.get("status") or {}).get("startTime")
    if deadline is not None and start and not spec.get("suspend") and age_s(start) >= deadline:
        return "FailureTarget", "DeadlineExceeded", "Job was active longer than specified deadline"
    for at, rule in enumerate((spec.get("successPolicy") or {}).get("rules") or []):
        named = parsed(rule["succeededIndexes"]) if rule.get("succeededIndexes") else set(range(wanted(spec)))
        if len(named & indexes) >= rule.get("succeededCount", len(named)):
            return "SuccessCriteriaMet", "SuccessPolicy", f"Matched rules at index {at}"
    return None


def _finish(storage: Storage, job: Object, verdict: tuple[str, str, str]) -> None:
    type_ = "Failed" if verdict[0] == "FailureTarget" else "Complete"
    changes: Object = {"conditions": with_condition(job, type_, "True", *verdict[1:])}
    if type_ == "Complete":
        changes["completionTime"] = now()
    set_status(storage, job, **changes)


def _expire(storage: Storage, job: Object) -> None:
    end, ttl = finished(job), job["spec"].get("ttlSecondsAfterFinished")
    if end and ttl is not None and not deleting(job) and age_s(end["lastTransitionTime"]) >= ttl:
        storage.delete("Job", *place(job))


def _release(storage: Storage, pods: Iterable[Object]) -> None:
    for pod in pods:
        rest = [f for f in pod["metadata"]["finalizers"] if f != TRACKING]
        namespace, name = place(pod)
        storage.merge("Pod", namespace, name, {"metadata": {"finalizers": rest or None}})


def _completed(status: Object) -> set[int]:
    return parsed(status.get("completedIndexes") or "")


def parsed(ranges: str) -> set[int]:
    """Of "0,2-4"."""
    ends = [part.partition("-") for part in ranges.split(",") if part]
    return {i for first, _, last in ends for i in range(int(first), int(last or first) + 1)}


def ranges(indexes: set[int]) -> str:
    """As in "0,2-4": three or more in a row are a range."""
    starts = sorted(i for i in indexes if i - 1 not in indexes)
    stops = sorted(i for i in indexes if i + 1 not in indexes)
    runs = zip(starts, stops, strict=True)
    return ",".join(f"{a}-{b}" if b - a > 1 else ",".join(map(str, range(a, b + 1))) for a, b in runs)
