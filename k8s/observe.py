"""What the cluster shows of a gang, in the same words for every backend, and why its pods are not made. `classify.py`
says what it means."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from k8s.client import RESOURCES, ApiResource, KubernetesClient, Refused
from k8s.gang import Gang, label_value
from k8s.lint.rules import quantity
from k8s.pod import CONTAINER, PLAN, plan_label
from k8s.render import SUBMITTER

_FORBIDDEN = re.compile(
    r"is forbidden: |denied the request|denied request|must specify|serviceaccount .{0,80} not found"
)
_QUOTA = re.compile(
    r"exceeded quota: (?P<name>[^,]+), requested: (?P<requested>.+), used: .+, limited: (?P<limited>.+)"
)
_ADVICE = {
    "exceeded quota": "Ask for less, or raise that ResourceQuota",
    "failed quota": "Name what that ResourceQuota counts, or take it away",
    "violates PodSecurity": "Change the pod, or what the namespace enforces (pod-security.kubernetes.io/enforce)",
    "minimum ": "Ask for more, or lower that LimitRange",
    "per Container": "Ask for less, or raise that LimitRange",
    "per Pod": "Ask for less, or raise that LimitRange",
    "serviceaccount": "Create it (k8s/manifests/bases/rbac), or correct compute.kubernetes.service_account",
    "service account": "Create it (k8s/manifests/bases/rbac), or correct compute.kubernetes.service_account",
    "ValidatingAdmissionPolicy": "Change the recipe, or what that policy allows (k8s/manifests/bases/admission)",
}
"""Words of a refusal, and what helps."""


CREATED = "SuccessfulCreate"
"""Reason of a controller's Event of each pod that it creates."""


class PodRefusal(NamedTuple):
    why: str
    """With what to do about it."""
    lasting: bool
    """Whether an empty namespace would forbid it too."""


def pod_refusal(events: Iterable[Mapping[str, Any]], gang: str, nodes: int) -> PodRefusal | None:
    """What the newest Event about an object of this gang says of pods that are forbidden; None without one, and where a
    pod of that object was made since: whoever forbade it does not any more.

    `gang`: its name, with which the names of all its objects begin: that of attempt 1 begins attempt 10's as well.
    `nodes`: as many pods of one size.
    """
    about = [each for each in events if f"{_of(each)}-".startswith(f"{gang}-")]
    newest = max((each for each in about if _FORBIDDEN.search(each.get("message", ""))), key=_at, default=None)
    if newest is None:
        return None
    made = [each for each in about if each.get("reason") == CREATED and _of(each) == _of(newest)]
    if any(_at(each) > _at(newest) for each in made):  # in one second it stands: a gang may get its first pod alone
        return None
    message = newest["message"]
    advice = next((text for words, text in _ADVICE.items() if words in message), "Change what it names")
    return PodRefusal(f"{message.removeprefix('Error creating: ')}. {advice}", not _may_fit(message, nodes))


def _of(event: Mapping[str, Any]) -> str:
    return event["involvedObject"].get("name", "")


def _at(event: Mapping[str, Any]) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"])


SIDES = ("requested", "limited")


def _may_fit(message: str, nodes: int) -> bool:
    """Whether a ResourceQuota that others fill would have room for all pods of the gang."""
    match = _QUOTA.search(message)
    if match is None:
        return False
    requested, limited = (dict(each.strip().split("=") for each in match[side].split(",")) for side in SIDES)
    return all(quantity(value) * nodes <= quantity(limited.get(name, "0")) for name, value in requested.items())


ATTEMPT = "preference-tuning/attempt"
JOB_UID = "kueue.x-k8s.io/job-uid"
SERVED = frozenset(("QuotaReserved", "Finished"))
"""Conditions of a workload that waits no longer."""
RANK = "batch.kubernetes.io/job-completion-index"

State = Literal["absent", "leaving", "suspended", "pending", "running", "restarting", "succeeded", "failed"]
KINDS = {"jobset": "JobSet", "volcano": "VolcanoJob", "rayjob": "RayJob"}


class PodSeen(NamedTuple):
    name: str
    rank: int
    """Of its node in the gang; -1 where the pod does not say."""
    phase: str
    exit_code: int | None
    """Of the trainer; None while it runs or when it never ran."""
    waiting: str
    """Why the container does not run yet, such as ImagePullBackOff."""
    ended: str
    """Why it ended, such as OOMKilled or Error; or why the pod did, such as Evicted."""
    disrupted: str
    """Reason of its DisruptionTarget condition: somebody took the pod away."""
    message: str
    attempt: int = 0
    container: str = CONTAINER
    """That says how the training goes: Ray's submitter has its output."""

    @property
    def alive(self) -> bool:
        return self.phase in ("Pending", "Running", "Unknown")


class Observed(NamedTuple):
    state: State
    uid: str = ""
    plan: str = ""
    """Label of the plan that it trains; "" for an object that is none of ours."""
    restarts: int = 0
    detail: str = ""
    """By the controllers, of why it is in this state."""
    pods: tuple[PodSeen, ...] = ()
    evicted: str = ""
    """Of a gang that is queued: why Kueue took back the quota that it had, PodsReadyTimeout or Preempted."""
    refusal: PodRefusal | None = None
    """Why pods that it lacks are not made."""
    version: str = ""
    """Of the object, which changes with whatever is written to it."""


def resource(gang: Gang) -> ApiResource:
    """Of the gang's own object."""
    return RESOURCES[KINDS[gang.settings.backend]]


def observe(client: KubernetesClient, gang: Gang) -> Observed:
    """One look: the object, its pods; while it is queued what Kueue says of it, while pods are missing what forbids
    them. Two to four requests."""
    namespace = gang.settings.namespace
    obj = client.get(resource(gang), namespace, gang.name)
    if obj is None:
        return Observed("absent")
    state, restarts, detail = READERS[gang.settings.backend](obj)
    plan = obj["metadata"].get("labels", {}).get(PLAN, "")
    if obj["metadata"].get("deletionTimestamp"):
        state = "leaving"
    uid, version = obj["metadata"]["uid"], obj["metadata"]["resourceVersion"]
    if state == "suspended":
        words, evicted = _queued(client, namespace, uid)
        return Observed(state, uid, plan, restarts, words or detail, evicted=evicted, version=version)
    pods = pods_of(client, gang)
    if state == "failed":
        detail = "; ".join(filter(None, (detail, _child_jobs(client, gang))))
    lacks_pods = state in ("pending", "restarting") and len(pods) < gang.nodes
    refusal = _refusal(client, gang) if lacks_pods else None
    return Observed(state, uid, plan, restarts, detail, pods, refusal=refusal, version=version)


def pods_of(client: KubernetesClient, gang: Gang, every_attempt: bool = False) -> tuple[PodSeen, ...]:
    """The pods of this attempt, or of all attempts at the plan."""
    labels = f"{PLAN}={plan_label(gang)}"
    if not every_attempt:
        labels += f",{ATTEMPT}={label_value(str(gang.attempt))}"
    pods = map(_pod, client.list(RESOURCES["Pod"], gang.settings.namespace, labels))
    return tuple(sorted(pods, key=lambda pod: pod.rank))


def _pod(obj: Mapping[str, Any]) -> PodSeen:
    meta, status = obj["metadata"], obj.get("status", {})
    containers = [c for c in status.get("containerStatuses", []) if c["name"] in (CONTAINER, SUBMITTER)]
    state: Mapping[str, Any] = containers[0].get("state", {}) if containers else {}
    terminated, waiting = state.get("terminated") or {}, state.get("waiting") or {}
    unplaced = _conditions(obj, "False").get("PodScheduled", {})
    messages = (waiting.get("message"), terminated.get("message"), unplaced.get("message"), status.get("message"))
    submits = any(container["name"] == SUBMITTER for container in obj["spec"]["containers"])
    labels, annotations = meta.get("labels", {}), meta.get("annotations", {})
    rank = labels.get(RANK, annotations.get(RANK, annotations.get("volcano.sh/task-index", "")))
    return PodSeen(
        name=meta["name"],
        rank=0 if submits else int(rank) if rank.isdecimal() else -1,
        phase=status.get("phase", "Pending"),
        exit_code=terminated.get("exitCode"),
        waiting=waiting.get("reason", "") or unplaced.get("reason", ""),
        ended=status.get("reason", "") or terminated.get("reason", ""),
        disrupted=_conditions(obj).get("DisruptionTarget", {}).get("reason", ""),
        message=next(filter(None, messages), ""),
        container=SUBMITTER if submits else CONTAINER,
        attempt=int(labels[ATTEMPT]) if labels.get(ATTEMPT, "").isdecimal() else 0,
    )


def _conditions(obj: Mapping[str, Any], status: str = "True") -> dict[str, Mapping[str, Any]]:
    """Those of that status, by type."""
    return {each["type"]: each for each in obj.get("status", {}).get("conditions", []) if each.get("status") == status}


def _condition_text(condition: Mapping[str, Any]) -> str:
    return ": ".join(filter(None, (condition.get("reason", ""), condition.get("message", ""))))


def _jobset(obj: Mapping[str, Any]) -> tuple[State, int, str]:
    status, true = obj.get("status", {}), _conditions(obj)
    restarts = int(status.get("restarts", 0))
    if "Completed" in true:
        return "succeeded", restarts, _condition_text(true["Completed"])
    if "Failed" in true:
        return "failed", restarts, _condition_text(true["Failed"])
    if obj["spec"].get("suspend"):
        return "suspended", restarts, _condition_text(true.get("Suspended", {}))
    counts = status.get("replicatedJobsStatus", [])
    if any(each.get("ready", 0) or each.get("succeeded", 0) for each in counts):
        return "running", restarts, ""
    return ("restarting" if restarts else "pending"), restarts, ""


def _vcjob(obj: Mapping[str, Any]) -> tuple[State, int, str]:
    status = obj.get("status", {})
    job_state = status.get("state", {})
    state: State = VOLCANO.get(job_state.get("phase", ""), "pending")
    return state, int(status.get("retryCount", 0)), _condition_text(job_state)


VOLCANO: dict[str, State] = {
    "Restarting": "restarting", "Completed": "succeeded", "Failed": "failed", "Aborted": "failed",
    "Terminated": "failed", **dict.fromkeys(("Running", "Completing", "Aborting", "Terminating"), "running"),
}  # fmt: skip
"""By phase."""


def _rayjob(obj: Mapping[str, Any]) -> tuple[State, int, str]:
    status = obj.get("status", {})
    job, deployed = status.get("jobStatus", ""), status.get("jobDeploymentStatus", "")
    detail = _condition_text(status)
    if job == "SUCCEEDED" and deployed in ("Complete", ""):
        return "succeeded", 0, detail
    if deployed in ("Failed", "ValidationFailed") or job in ("FAILED", "STOPPED"):
        return "failed", 0, detail
    if obj["spec"].get("suspend") or deployed == "Suspended":
        return "suspended", 0, detail
    return ("running" if deployed == "Running" and job == "RUNNING" else "pending"), 0, detail


READERS = {"jobset": _jobset, "volcano": _vcjob, "rayjob": _rayjob}


def _refusal(client: KubernetesClient, gang: Gang) -> PodRefusal | None:
    at, namespace = RESOURCES["Event"], gang.settings.namespace
    try:
        events = client.list(at, namespace, fields="type=Warning")
        if pod_refusal(events, gang.name, gang.nodes) is None:
            return None
        events += client.list(at, namespace, fields=f"reason={CREATED}")
    except Refused:  # no right to look
        return None
    return pod_refusal(events, gang.name, gang.nodes)


def _queued(client: KubernetesClient, namespace: str, uid: str) -> tuple[str, str]:
    """Kueue's own words on why the gang is not admitted, and the reason of its last eviction; nothing where it has
    none. Of a gang behind the head of a strict queue Kueue says nothing: then the head is named, and why it waits."""
    try:
        workloads = client.list(RESOURCES["Workload"], namespace, f"{JOB_UID}={uid}")
        words, evicted = (
            "; ".join(filter(None, map(_why_held, workloads))),
            "".join(_conditions(each).get("Evicted", {}).get("reason", "") for each in workloads),
        )
        if words or evicted or not workloads:
            return words, evicted
        return _behind(workloads[0], client.list(RESOURCES["Workload"], namespace)), ""
    except Refused:  # words are a kindness: no Kueue here, or no right to look
        return "", ""


def _why_held(workload: Mapping[str, Any]) -> str:
    told = (_conditions(workload, "False").get("QuotaReserved"), _conditions(workload).get("Evicted"))
    return "; ".join(_condition_text(each) for each in told if each)


def _behind(workload: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> str:
    """Of the workloads that wait in the same queue, the one that Kueue says something of: the head of a strict queue.
    Kueue's order is by priority, then by age in whole seconds."""
    queue, turn = workload["spec"].get("queueName"), _turn(workload)
    waiting = [
        each for each in others if each["spec"].get("queueName") == queue and not _conditions(each).keys() & SERVED
    ]
    head = min((each for each in waiting if _why_held(each) and _turn(each) <= turn), key=_turn, default=None)
    if head is None:
        return ""
    owners = head["metadata"].get("ownerReferences") or [{"name": f"workload {head['metadata']['name']}"}]
    return f"it waits behind {owners[0]['name']}, the head of queue {queue}: {_why_held(head)}"


def _turn(workload: Mapping[str, Any]) -> tuple[int, str]:
    return -int(workload["spec"].get("priority") or 0), workload["metadata"]["creationTimestamp"]


def _child_jobs(client: KubernetesClient, gang: Gang) -> str:
    """What the Jobs of a failed JobSet died of: their pods may be gone already."""
    if gang.settings.backend != "jobset":
        return ""
    try:
        jobs = client.list(RESOURCES["Job"], gang.settings.namespace, f"jobset.sigs.k8s.io/jobset-name={gang.name}")
    except Refused:
        return ""
    return "; ".join(_condition_text(true["Failed"]) for true in map(_conditions, jobs) if "Failed" in true)
