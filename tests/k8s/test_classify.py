"""What a look at a gang means where no recorded sequence (test_sequences.py) has it, and why pods are forbidden."""

import pytest

from k8s.classify import classify
from k8s.observe import Observed, PodSeen, pod_refusal

RAN = "Failed"
NO_CLAIM = '0/3 nodes are available: persistentvolumeclaim "checkpoints" not found.'


def pod(rank: int = 0, phase: str = "Running", code: int | None = None, **more: str) -> PodSeen:
    words = {"waiting": "", "ended": "", "disrupted": "", "message": ""} | more
    return PodSeen(f"pod-{rank}", rank, phase, code, **words)


def failed(*pods: PodSeen, detail: str = "FailedJobs: jobset failed") -> Observed:
    return Observed("failed", pods=pods, detail=detail)


SUBMITTER = pod(code=1, phase=RAN)._replace(container="submitter")
CASES = {
    "refused, with peers stopped": (failed(pod(code=143, phase=RAN), pod(1, code=64, phase=RAN)), "refused"),
    "refused on a node that goes": (
        failed(pod(code=64, phase=RAN), pod(1, code=143, phase=RAN, disrupted="EvictionByEvictionAPI")),
        "refused",
    ),
    "a crash takes its peers": (failed(pod(code=1, phase=RAN), pod(1, code=143, phase=RAN)), "crashed"),
    "too long, in a pod": (failed(pod(code=143, phase=RAN, ended="DeadlineExceeded")), "timed_out"),
    "no claim": (
        Observed("pending", pods=(pod(phase="Pending", waiting="Unschedulable", message=NO_CLAIM),)),
        "volume",
    ),
    "Ray's submitter, a crash, its nodes taken down": (
        failed(pod(-1, code=143, phase=RAN), SUBMITTER, detail="command failed with exit code 1, last"),
        "crashed",
    ),
    "Ray's submitter, saved and left, its nodes taken down": (
        failed(pod(-1, code=1, phase=RAN), SUBMITTER, detail="command failed with exit code 143, last"),
        "preempted",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_look_has_one_meaning(name: str) -> None:
    observed, expected = CASES[name]
    verdict = classify(observed)
    assert verdict.cause == expected
    assert verdict.why


POD = 'Error creating: pods "train-a-1-trainer-0-0-x7k2p" is forbidden: '
QUOTA = POD + "exceeded quota: compute, requested: limits.cpu=4,requests.nvidia.com/gpu=8, used: limits.cpu=8,"
REFUSALS = {
    "quota that others fill": (
        QUOTA + "requests.nvidia.com/gpu=8, limited: limits.cpu=10,requests.nvidia.com/gpu=16", False, "ResourceQuota",
    ),
    "quota of less than one pod": (
        QUOTA + "requests.nvidia.com/gpu=0, limited: limits.cpu=10,requests.nvidia.com/gpu=4", True, "ResourceQuota",
    ),
    "quota of what no pod names": (
        POD + "failed quota: compute: must specify limits.cpu for: trainer", True, "Name what",
    ),
    "range": (POD + "maximum memory usage per Container is 1Gi, but limit is 1600Gi", True, "LimitRange"),
    "pod security": (
        POD + 'violates PodSecurity "restricted:v1.33": allowPrivilegeEscalation != false (container "trainer" must '
        "set securityContext.allowPrivilegeEscalation=false)", True, "pod-security.kubernetes.io/enforce",
    ),
    "account": (
        POD + 'error looking up service account a/trainer: serviceaccount "trainer" not found', True, "service_account",
    ),
    "policy": (
        POD + "ValidatingAdmissionPolicy 'launched' with binding 'gangs' denied request: no such image", True, "policy",
    ),
}  # fmt: skip


def event(message: str, name: str = "train-a-1-trainer-0", at: str = "2026-01-05T10:00:00Z") -> dict[str, object]:
    about = {"kind": "Job", "name": name}
    return {"involvedObject": about, "message": message, "lastTimestamp": at, "type": "Warning"}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_is_told_with_its_cause_and_class(name: str) -> None:
    message, lasting, advice = REFUSALS[name]
    refusal = pod_refusal([event(message)], "train-a-1", nodes=2)
    assert refusal is not None
    assert refusal.lasting is lasting
    assert message.removeprefix("Error creating: ") in refusal.why
    assert advice in refusal.why


def test_events_of_others_and_of_other_things_are_none() -> None:
    message, _, _ = REFUSALS["range"]
    others = [event(message, "train-b-1-trainer-0"), event(message, "train-a-10"), event("Back-off restarting")]
    assert pod_refusal(others, "train-a-1", nodes=2) is None


def created(at: str, name: str = "train-a-1-trainer-0") -> dict[str, object]:
    return event("Created pod: train-a-1-x7k2p", name, at) | {"type": "Normal", "reason": "SuccessfulCreate"}


def test_a_refusal_that_a_pod_came_after_is_none() -> None:
    refused = event(REFUSALS["range"][0])
    assert pod_refusal([refused, created("2026-01-05T10:00:01Z")], "train-a-1", nodes=2) is None
    for stands in (
        created("2026-01-05T09:59:59Z"),
        created("2026-01-05T10:00:00Z"),
        created("2026-01-05T10:00:01Z", "train-a-1-trainer-1"),
    ):
        assert pod_refusal([refused, stands], "train-a-1", nodes=2) is not None
    again = event(REFUSALS["range"][0], at="2026-01-05T10:00:02Z")
    assert pod_refusal([refused, created("2026-01-05T10:00:01Z"), again], "train-a-1", nodes=2) is not None
