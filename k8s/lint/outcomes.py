"""What the controllers make of a pod that ends: the rules ask this model instead of matching the shape of a policy.

Follows the Job controller (Kubernetes 1.36), JobSet 0.12 and Volcano 1.15 as far as a training gang meets them; only
what was seen on a real API server, or read in their sources, is in it.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

from k8s.lint.pods import Job
from k8s.lint.tree import Node, rows, sub, text, texts, whole


class PodExit(NamedTuple):
    """Of a trainer's pod: `evicted` is the condition DisruptionTarget."""

    code: int
    evicted: bool = False


EVICTED = PodExit(143, evicted=True)
NOTICED = PodExit(143)
"""The trainer saw the interruption notice before the eviction came."""
REFUSED = PodExit(64), PodExit(65)
"""Never again: the plan is wrong, or an erasure took its data away."""
CRASHED = PodExit(1)

REPLACED = "the pod alone is replaced"


class PodFailure(NamedTuple):
    """Of a Job: its reason and message, which a JobSet's failure policy matches."""

    reason: str
    message: str


def failure(job: Job, end: PodExit) -> PodFailure | None:
    """How the Job fails at the first such end; None: it replaces the pod and goes on."""
    names = {c.name for c in job.pods.containers}
    for i, row in enumerate(rows(job.spec, "podFailurePolicy", "rules")):
        action, why = text(row, "action"), _matches(row, end, names)
        if not why:
            continue
        if action == "FailJob":
            return PodFailure("PodFailurePolicy", f"{why} matching FailJob rule at index {i}")
        if action == "FailIndex":
            return PodFailure("FailedIndexes", "Job has failed indexes")
        if action == "Ignore":
            return None
        break
    per_index = job.spec.get("backoffLimitPerIndex")
    if per_index is not None:
        return PodFailure("FailedIndexes", "Job has failed indexes") if per_index == 0 else None
    if whole(job.spec, "backoffLimit", default=6) == 0:
        return PodFailure("BackoffLimitExceeded", "Job has reached the specified backoff limit")
    return None


def jobset_action(jobset: Node, job: Job, end: PodExit) -> str:
    """FailJobSet, RestartJobSet, RestartJobSetAndIgnoreMaxRestarts, ... or REPLACED."""
    failed = failure(job, end)
    if failed is None:
        return REPLACED
    policy = sub(jobset, "spec", "failurePolicy")
    for row in rows(policy, "rules"):
        reasons, patterns = texts(row, "onJobFailureReasons"), texts(row, "onJobFailureMessagePatterns")
        targets = texts(row, "targetReplicatedJobs")
        if (
            (not reasons or failed.reason in reasons)
            and (not patterns or any(_found(pattern, failed.message) for pattern in patterns))
            and (not targets or job.name in targets)
        ):
            return text(row, "action")
    return "RestartJobSet" if policy else "FailJobSet"


def volcano_action(job: Node, task: Node, end: PodExit) -> str:
    """The action of the first policy that matches, the task's own before the job's; SyncJob where none does."""
    event = "PodEvicted" if end.evicted else "PodFailed"
    for row in [*rows(task, "policies"), *rows(job, "spec", "policies")]:
        events = {text(row, "event"), *texts(row, "events")} - {""}
        if events & {event, "*"} or whole(row, "exitCode", default=-1) == end.code:
            return text(row, "action")
    return "SyncJob"


def _matches(row: Node, end: PodExit, containers: Collection[str]) -> str:
    codes = sub(row, "onExitCodes")
    listed = codes.get("values")
    if isinstance(listed, list) and text(codes, "containerName") in {"", *containers}:
        inside = end.code in listed
        if (text(codes, "operator") == "In") == inside and end.code:
            return f"Container trainer for pod preference-tuning/trainer failed with exit code {end.code}"
    for condition in rows(row, "onPodConditions"):
        if end.evicted and text(condition, "type") == "DisruptionTarget" and text(condition, "status") in {"", "True"}:
            return "Pod preference-tuning/trainer has condition DisruptionTarget"
    return ""


def _found(pattern: str, message: str) -> bool:
    try:
        return re.search(pattern, message) is not None
    except re.error:
        return False  # the API server would refuse it
