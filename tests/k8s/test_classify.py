"""What each look at a gang means."""

import pytest

from k8s.classify import NOT_STARTED, OVER, classify
from k8s.observe import Observed, PodSeen

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
