"""Why pods are forbidden, in the API server's words, and which of Kueue's matter."""

import pytest

from k8s.pod_refusals import pod_refusal, relevant

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
