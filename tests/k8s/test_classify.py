"""What each look at a gang means, and why its pods are forbidden, in the words of whoever forbids them."""

import pytest

from k8s.classify import NOT_STARTED, OVER, classify
from k8s.observe import Observed, PodSeen
from k8s.pod_refusals import pod_refusal, relevant

RAN = "Failed"
NO_CLAIM = '0/3 nodes are available: persistentvolumeclaim "checkpoints" not found.'


def pod(rank: int = 0, phase: str = "Running", code: int | None = None, **more: str) -> PodSeen:
    words = {"waiting": "", "ended": "", "disrupted": "", "message": ""} | more
    return PodSeen(f"pod-{rank}", rank, phase, code, **words)


def failed(*pods: PodSeen, detail: str = "FailedJobs: jobset failed") -> Observed:
    return Observed("failed", pods=pods, detail=detail)


SUBMITTER = pod(code=1, phase=RAN)._replace(container="submitter")
CASES = {
    "all done": (Observed("succeeded"), "succeeded"),
    "no quota": (Observed("suspended", detail="couldn't assign flavors"), "queued"),
    "quota that came without nodes": (
        Observed("suspended", detail="Exceeded the PodsReady timeout", evicted="PodsReadyTimeout"),
        "no_capacity",
    ),
    "quota that another gang took": (Observed("suspended", detail="Preempted", evicted="Preempted"), "restarting"),
    "quota of a queue on hold": (Observed("suspended", evicted="ClusterQueueStopped"), "queued"),
    "no pod yet": (Observed("pending"), "starting"),
    "creating": (Observed("pending", pods=(pod(phase="Pending", waiting="ContainerCreating"),)), "starting"),
    "no node": (Observed("pending", pods=(pod(phase="Pending", waiting="Unschedulable"),)), "no_capacity"),
    "no node after a kill": (
        Observed("restarting", restarts=1, pods=(pod(phase="Pending", waiting="Unschedulable"),)),
        "no_capacity",
    ),
    "image": (Observed("pending", pods=(pod(phase="Pending", waiting="ImagePullBackOff"),)), "image"),
    "image of one": (Observed("running", pods=(pod(), pod(1, "Pending", waiting="ErrImagePull"))), "image"),
    "running": (Observed("running", pods=(pod(),)), "running"),
    "refused, though a controller starts it again": (
        Observed("restarting", restarts=1, pods=(pod(code=64, phase=RAN), pod(1))),
        "refused",
    ),
    "erased, though it counts as running": (Observed("running", pods=(pod(code=65, phase=RAN), pod(1))), "refused"),
    "more than a LimitRange allows, in a queue": (
        Observed("suspended", detail="Pending: resources didn't satisfy LimitRange constraints: spec.podSets[0]"),
        "forbidden",
    ),
    "restarting": (Observed("restarting", restarts=2, pods=(pod(phase="Pending"),)), "restarting"),
    "being deleted": (Observed("leaving"), "leaving"),
    "not there": (Observed("absent"), "deleted"),
    "refused": (failed(pod(code=64, phase=RAN)), "refused"),
    "refused, with peers stopped": (failed(pod(code=143, phase=RAN), pod(1, code=64, phase=RAN)), "refused"),
    "refused, pods gone": (
        failed(detail="PodFailurePolicy: Container trainer for pod a/b failed with exit code 64 matching FailJob rule"),
        "refused",
    ),
    "refused on a node that goes": (
        failed(pod(code=64, phase=RAN), pod(1, code=143, phase=RAN, disrupted="EvictionByEvictionAPI")),
        "refused",
    ),
    "memory": (failed(pod(code=137, phase=RAN, ended="OOMKilled"), pod(1, code=143, phase=RAN)), "out_of_memory"),
    "evicted": (failed(pod(code=143, phase=RAN, disrupted="EvictionByEvictionAPI")), "preempted"),
    "evicted, too slow to save": (failed(pod(code=137, phase=RAN, disrupted="DeletionByTaintManager")), "preempted"),
    "all saved and left": (failed(pod(code=143, phase=RAN), pod(1, code=143, phase=RAN)), "preempted"),
    "disrupted, pods gone": (
        failed(detail="PodFailurePolicy: Pod a/b has condition DisruptionTarget matching FailJob rule at index 1"),
        "preempted",
    ),
    "a crash takes its peers": (failed(pod(code=1, phase=RAN), pod(1, code=143, phase=RAN)), "crashed"),
    "a crash, pods gone": (failed(detail="ReachedMaxRestarts: jobset failed due to reaching max restarts"), "crashed"),
    "a kill by nobody known": (failed(pod(code=137, phase=RAN, ended="Error")), "crashed"),
    "too long, in a pod": (failed(pod(code=143, phase=RAN, ended="DeadlineExceeded")), "timed_out"),
    "no claim": (
        Observed("pending", pods=(pod(phase="Pending", waiting="Unschedulable", message=NO_CLAIM),)),
        "volume",
    ),
    "Ray's submitter says what the trainer ended with": (
        failed(SUBMITTER, detail="command failed with exit code 143, last"),
        "preempted",
    ),
    "Ray's submitter, a plan refused": (
        failed(SUBMITTER, detail="command failed with exit code 64, last"),
        "refused",
    ),
    "Ray's submitter, a crash, its nodes taken down": (
        failed(pod(-1, code=143, phase=RAN), SUBMITTER, detail="command failed with exit code 1, last"),
        "crashed",
    ),
    "Ray's submitter, saved and left, its nodes taken down": (
        failed(pod(-1, code=1, phase=RAN), SUBMITTER, detail="command failed with exit code 143, last"),
        "preempted",
    ),
    "too long": (failed(detail="DeadlineExceeded: Job was active longer than specified deadline"), "timed_out"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_look_has_one_meaning(name: str) -> None:
    observed, expected = CASES[name]
    verdict = classify(observed)
    assert verdict.cause == expected
    assert verdict.why


def test_a_look_either_ends_the_attempt_or_leaves_it_waiting() -> None:
    ended = {classify(observed).cause for observed, _ in CASES.values() if observed.state in ("failed", "succeeded")}
    assert ended <= OVER
    assert not NOT_STARTED & OVER


def test_the_reason_names_the_pod_and_what_the_cluster_says() -> None:
    message = 'Back-off pulling image "registry.example.com/x"'
    verdict = classify(Observed("pending", pods=(pod(3, "Pending", waiting="ImagePullBackOff", message=message),)))
    assert "pod-3" in verdict.why
    assert message in verdict.why


POD = 'Error creating: pods "train-a-1-trainer-0-0-x7k2p" is forbidden: '
QUOTA = POD + "exceeded quota: compute, requested: limits.cpu=4,requests.nvidia.com/gpu=8, used: limits.cpu=8,"
REFUSALS = {
    "quota that others fill": (
        QUOTA + "requests.nvidia.com/gpu=8, limited: limits.cpu=10,requests.nvidia.com/gpu=16", False, "ResourceQuota",
    ),
    "quota of less than one pod": (
        QUOTA + "requests.nvidia.com/gpu=0, limited: limits.cpu=10,requests.nvidia.com/gpu=4", True, "ResourceQuota",
    ),
    "quota of less than both pods": (
        QUOTA + "requests.nvidia.com/gpu=8, limited: limits.cpu=7,requests.nvidia.com/gpu=16", True, "ResourceQuota",
    ),
    "quota of what no pod names": (
        POD + "failed quota: compute: must specify limits.cpu for: trainer", True, "Name what",
    ),
    "range": (POD + "maximum memory usage per Container is 1Gi, but limit is 1600Gi", True, "LimitRange"),
    "range's least": (POD + "minimum memory usage per Container is 4Gi, but request is 1Gi", True, "Ask for more"),
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
    "webhook": ('admission webhook "vpod.kb.io" denied the request: no such priority', True, "Change what it names"),
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
    others = [event(message, "train-b-1-trainer-0"), event("Back-off restarting failed container")]
    assert pod_refusal(others, "train-a-1", nodes=2) is None


def test_the_newest_of_several_refusals_counts() -> None:
    older, newer = REFUSALS["range"][0], REFUSALS["pod security"][0]
    events = [event(newer, at="2026-01-05T10:00:09Z"), event(older, at="2026-01-05T10:00:00Z")]
    refusal = pod_refusal(events, "train-a-1", nodes=2)
    assert refusal is not None and "PodSecurity" in refusal.why


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


SET = "Pending: couldn't assign flavors to pod set trainer: "
TAINT = "untolerated taint {nvidia.com/gpu true NoSchedule <nil>} in flavor training"
SHORT = "insufficient unused quota for nvidia.com/gpu in flavor training, 8 more needed"
NONE = (
    "insufficient quota for nvidia.com/gpu in flavor any-node, previously considered podsets requests (0) + current "
    "podset request (16) > maximum capacity (0)"
)
FULL = NONE.replace("any-node", "training").replace("(0)", "(8)")
CPU = NONE.replace("nvidia.com/gpu", "cpu").replace("(16)", "(372)").replace("capacity (0)", "capacity (16)")


@pytest.mark.parametrize(
    ("clauses", "kept"),
    [
        ([SHORT, NONE], [SHORT]),
        ([SHORT, CPU, NONE], [SHORT]),
        ([TAINT, CPU], [CPU]),
        (["flavor spot doesn't match node affinity", SHORT], [SHORT]),
        ([FULL, NONE], [FULL]),
        ([TAINT, NONE], [TAINT, NONE]),
        ([SHORT], [SHORT]),
    ],
)
def test_kueues_words_are_of_flavours_that_can_matter(clauses: list[str], kept: list[str]) -> None:
    assert relevant(SET + ", ".join(clauses)) == SET + ", ".join(kept)


def test_other_words_of_kueue_stay_as_they_are() -> None:
    for words in ("Inadmissible: LocalQueue x doesn't exist", "", "Evicted: couldn't assign"):
        assert relevant(words) == words


def test_a_refusal_of_attempt_10_is_none_of_attempt_1() -> None:
    message, *_ = REFUSALS["range"]
    assert pod_refusal([event(message, "train-a-10-trainer-0"), event(message, "train-a-10")], "train-a-1", 1) is None
    assert pod_refusal([event(message, "train-a-1")], "train-a-1", 1) is not None
