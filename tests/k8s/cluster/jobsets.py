"""The JobSet controller (0.12): a JobSet becomes child Jobs and one headless Service; its failure policy decides what a
failed child means for the others.

Not: startup order, dependsOn, in-place restarts, restarts of single Jobs, exclusive placement.
"""

from __future__ import annotations

import copy
import hashlib
import re

from .jobs import finished
from .kinds import Object
from .objects import (
    age_s,
    condition,
    create,
    deleting,
    event,
    labels,
    notes,
    owned,
    place,
    set_status,
    suspended,
    with_condition,
)
from .storage import Storage

PREFIX = "jobset.sigs.k8s.io"
RESTART = f"{PREFIX}/restart-attempt"
RESTARTS = ("RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts")


def reconcile(storage: Storage) -> None:
    jobs = storage.list("Job")[0]
    for jobset in storage.list("JobSet")[0]:
        if not deleting(jobset):
            _sync(storage, jobset, owned(jobs, jobset))


def _sync(storage: Storage, jobset: Object, jobs: list[Object]) -> None:
    waits, restarts = suspended(storage, jobset), (jobset.get("status") or {}).get("restarts", 0)
    previous = [j for j in jobs if int(labels(j)[RESTART]) < restarts]
    current = [j for j in jobs if j not in previous]
    active = [j for j in current if not finished(j)]
    jobset = set_status(storage, jobset, replicatedJobsStatus=_statuses(jobset, current), restarts=restarts)
    if end := condition(jobset, "Completed") or condition(jobset, "Failed"):
        _delete(storage, active)
        ttl = jobset["spec"].get("ttlSecondsAfterFinished")
        if ttl is not None and age_s(end["lastTransitionTime"]) >= ttl:
            storage.delete("JobSet", *place(jobset), propagation="Foreground")
        return
    _delete(storage, previous)
    failed = [j for j in current if condition(j, "Failed")]
    if failed:
        _fail(storage, jobset, failed)
        return
    if _succeeded(jobset, current):
        message = "jobset completed successfully"
        conditions = with_condition(jobset, "Completed", "True", "AllJobsCompleted", message)
        set_status(storage, jobset, conditions=conditions, terminalState="Completed")
        return
    _service(storage, jobset)
    blocked = previous and (jobset["spec"].get("failurePolicy") or {}).get("restartStrategy") == "BlockingRecreate"
    taken = {j["metadata"]["name"] for j in jobs}
    for replicated in [] if blocked else jobset["spec"]["replicatedJobs"]:
        for index in range(replicated.get("replicas", 1)):
            if f"{jobset['metadata']['name']}-{replicated['name']}-{index}" not in taken:
                _create(storage, jobset, replicated, index, waits)
    _suspend(storage, jobset, active, waits)


def _fail(storage: Storage, jobset: Object, failed: list[Object]) -> None:
    """The failure policy: the first rule that matches some failed Job; none is a counted restart, no policy the end."""
    failed = sorted(failed, key=lambda j: condition(j, "Failed")["lastTransitionTime"])
    policy = jobset["spec"].get("failurePolicy")
    if policy is None:
        _end(storage, jobset, "FailedJobs", "jobset failed due to one or more job failures", failed[0])
        return
    rules = policy.get("rules") or []
    action, job = next(
        ((r["action"], j) for r in rules for j in failed if _applies(r, j)), ("RestartJobSet", failed[0])
    )
    status = jobset.get("status") or {}
    if action == "FailJobSet":
        _end(storage, jobset, "FailJobSetFailurePolicyAction", "applying FailJobSet failure policy action", job)
        return
    assert action in RESTARTS, f"the tests' JobSet controller has no {action}"
    counted = status.get("restartsCountTowardsMax", 0)
    if action == "RestartJobSet":
        if counted >= policy.get("maxRestarts", 0):
            message = "jobset failed due to reaching max number of restarts"
            _end(storage, jobset, "ReachedMaxRestarts", message, job)
            return
        counted += 1
    set_status(storage, jobset, restarts=status.get("restarts", 0) + 1, restartsCountTowardsMax=counted)
    message = f"applying {action} failure policy action (first failed job: {job['metadata']['name']})"
    event(storage, jobset, "Warning", f"{action}FailurePolicyAction", message, "jobset")


def _applies(rule: Object, job: Object) -> bool:
    failure = condition(job, "Failed")
    reasons, targets = rule.get("onJobFailureReasons") or [], rule.get("targetReplicatedJobs") or []
    patterns = rule.get("onJobFailureMessagePatterns") or []
    if (reasons and failure["reason"] not in reasons) or (
        targets and labels(job)[f"{PREFIX}/replicatedjob-name"] not in targets
    ):
        return False
    # Go's regexp.MatchString: anywhere in the message.
    return not patterns or any(re.search(p, failure["message"]) for p in patterns)


def _end(storage: Storage, jobset: Object, reason: str, message: str, job: Object) -> None:
    message = f"{message} (first failed job: {job['metadata']['name']})"
    conditions = with_condition(jobset, "Failed", "True", reason, message)
    set_status(storage, jobset, conditions=conditions, terminalState="Failed")
    event(storage, jobset, "Warning", reason, message, "jobset")


def _succeeded(jobset: Object, jobs: list[Object]) -> bool:
    policy = jobset["spec"].get("successPolicy") or {}
    targets, replicated = policy.get("targetReplicatedJobs") or [], jobset["spec"]["replicatedJobs"]
    counts = [r.get("replicas", 1) for r in replicated if not targets or r["name"] in targets]
    done = [j for j in jobs if condition(j, "Complete")]
    done = [j for j in done if not targets or labels(j)[f"{PREFIX}/replicatedjob-name"] in targets]
    return len(done) >= (1 if policy.get("operator") == "Any" else sum(counts))


def _statuses(jobset: Object, jobs: list[Object]) -> list[Object]:
    rows: list[Object] = []
    for replicated in jobset["spec"]["replicatedJobs"]:
        mine = [j for j in jobs if labels(j)[f"{PREFIX}/replicatedjob-name"] == replicated["name"]]
        going = [j for j in mine if not finished(j)]
        row: Object = {
            "name": replicated["name"],
            "active": sum((j.get("status") or {}).get("active", 0) > 0 for j in going),
        }
        row["ready"] = sum(map(_ready, going))
        row["suspended"] = sum(bool(j["spec"].get("suspend")) for j in going)
        row["succeeded"] = sum(bool(condition(j, "Complete")) for j in mine)
        row["failed"] = sum(bool(condition(j, "Failed")) for j in mine)
        rows.append(row)
    return rows


def _ready(job: Object) -> bool:
    status, spec = job.get("status") or {}, job["spec"]
    pods = min(spec.get("parallelism", 1), spec.get("completions") or spec.get("parallelism", 1))
    return status.get("succeeded", 0) + status.get("ready", 0) >= pods


def _service(storage: Storage, jobset: Object) -> None:
    network = jobset["spec"].get("network") or {}
    if not network.get("enableDNSHostnames", True):
        return
    subdomain = network.get("subdomain") or jobset["metadata"]["name"]
    if any(place(s)[1] == subdomain for s in storage.list("Service", place(jobset)[0])[0]):
        return
    spec = {"clusterIP": "None", "selector": {f"{PREFIX}/jobset-name": jobset["metadata"]["name"]}}
    spec["publishNotReadyAddresses"] = network.get("publishNotReadyAddresses", True)
    create(storage, "Service", jobset, {"name": subdomain}, spec=spec)


def _create(storage: Storage, jobset: Object, replicated: Object, index: int, waits: bool) -> None:
    name = f"{jobset['metadata']['name']}-{replicated['name']}-{index}"
    template = copy.deepcopy(replicated["template"])
    spec = template["spec"]
    marks = _marks(jobset, replicated, index, name)
    _mark(template.setdefault("metadata", {}), marks)
    _mark(spec["template"].setdefault("metadata", {}), marks)
    network = jobset["spec"].get("network") or {}
    if network.get("enableDNSHostnames", True):
        spec["template"]["spec"]["subdomain"] = network.get("subdomain") or jobset["metadata"]["name"]
    # Defaults of JobSet's webhook.
    spec.setdefault("completionMode", "Indexed")
    spec["template"]["spec"].setdefault("restartPolicy", "OnFailure")
    create(storage, "Job", jobset, template["metadata"] | {"name": name}, spec=spec | {"suspend": waits})


def _mark(metadata: Object, marks: dict[str, str]) -> None:
    for key in ("labels", "annotations"):
        metadata[key] = (metadata.get(key) or {}) | marks


def _marks(jobset: Object, replicated: Object, index: int, name: str) -> dict[str, str]:
    """What JobSet writes on each Job and pod, as labels and again as annotations."""
    all_ = jobset["spec"]["replicatedJobs"]
    counts = [r.get("replicas", 1) for r in all_]
    before = sum(counts[: [r["name"] for r in all_].index(replicated["name"])])
    namespace = jobset["metadata"]["namespace"]
    marks = {
        "jobset-name": jobset["metadata"]["name"],
        "jobset-uid": jobset["metadata"]["uid"],
        "replicatedjob-name": replicated["name"],
        "replicatedjob-replicas": replicated.get("replicas", 1),
        "restart-attempt": (jobset.get("status") or {}).get("restarts", 0),
        "global-replicas": sum(counts),
        "job-index": index,
        "job-global-index": before + index,
        "job-key": hashlib.sha1(f"{namespace}/{name}".encode()).hexdigest(),
    }
    return {f"{PREFIX}/{key}": str(value) for key, value in marks.items()}


def _suspend(storage: Storage, jobset: Object, active: list[Object], waits: bool) -> None:
    templates = {r["name"]: r["template"]["spec"]["template"] for r in jobset["spec"]["replicatedJobs"]}
    for job in active:
        if bool(job["spec"].get("suspend")) == waits:
            continue
        job["spec"]["suspend"] = waits
        if not waits:  # what Kueue injected while the JobSet was suspended
            source = templates[notes(job)[f"{PREFIX}/replicatedjob-name"]]["spec"]
            target = job["spec"]["template"]["spec"]
            target["nodeSelector"] = (target.get("nodeSelector") or {}) | (source.get("nodeSelector") or {})
            old = target.get("tolerations") or []
            target["tolerations"] = old + [t for t in source.get("tolerations") or [] if t not in old]
        storage.update("Job", place(job)[0], job)
    if waits:
        conditions = with_condition(jobset, "Suspended", "True", "SuspendedJobs", "jobset is suspended")
        set_status(storage, jobset, conditions=conditions)
    elif condition(jobset, "Suspended"):
        conditions = with_condition(jobset, "Suspended", "False", "ResumeJobs", "jobset is resumed")
        set_status(storage, jobset, conditions=conditions)


def _delete(storage: Storage, jobs: list[Object]) -> None:
    for job in jobs:
        if not deleting(job):
            storage.delete("Job", *place(job), propagation="Foreground")
