"""The proved behaviour of Jobs and JobSets; with KUBECONFIG set, the real controllers answer instead of ours."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from . import jobs as job_controller
from .gangs import GANG, TARGET, cluster, job, jobset, ours, pod_template, running, status
from .objects import labels, notes, phase, place
from .pod_driver import PodDriver
from .volumes import COMPLETED


@pytest.mark.parametrize("mode", ["Indexed", "NonIndexed"])
def test_three_parallel_pods_of_one_completion_are_one_pod(driver: PodDriver, ns: str, mode: str) -> None:
    driver.api.create(job("seed", ns, completions=1, parallelism=3, completionMode=mode))
    running(driver, ns, 1)
    driver.wait_until(lambda: status(driver, "Job", ns, "seed").get("ready") == 1)
    assert len(driver.pods(ns)) == 1


def test_an_indexed_job_has_a_pod_and_a_name_for_each_rank(driver: PodDriver, ns: str) -> None:
    driver.api.create(job("gang", ns, template=pod_template(subdomain="gang")))
    pods = driver.wait_for_pods(3, ns)
    assert [notes(p)["batch.kubernetes.io/job-completion-index"] for p in pods] == ["0", "1", "2"]
    assert [(p["spec"]["hostname"], p["spec"]["subdomain"]) for p in pods] == [(f"gang-{i}", "gang") for i in range(3)]
    assert all(labels(p)["job-name"] == "gang" and place(p)[1].startswith(f"gang-{i}-") for i, p in enumerate(pods))
    source = pods[0]["spec"]["containers"][0]["env"][-1]
    assert source["name"] == "JOB_COMPLETION_INDEX" and "fieldRef" in source["valueFrom"]


def test_one_eviction_kills_a_job_without_a_pod_failure_policy(driver: PodDriver, ns: str) -> None:
    driver.api.create(job("bare", ns))
    pods = running(driver, ns, 3)
    assert driver.evict(pods[1]) == 201
    driver.wait_for("Job", ns, "bare", "FailureTarget")
    for pod in (pods[0], pods[2]):
        driver.end(pod)
    failed = driver.wait_for("Job", ns, "bare", "Failed")
    assert (failed["reason"], failed["message"]) == (
        "BackoffLimitExceeded",
        "Job has reached the specified backoff limit",
    )


def test_ignored_disruption_replaces_one_rank_alone(driver: PodDriver, ns: str) -> None:
    driver.api.create(job("ignores", ns, podFailurePolicy={"rules": [{"action": "Ignore"} | TARGET]}))
    before = running(driver, ns, 3)
    driver.evict(before[1])
    after = driver.wait_until(lambda: [p for p in driver.pods(ns) if place(p) not in map(place, before)])
    assert [labels(p)["batch.kubernetes.io/job-completion-index"] for p in after] == ["1"]
    assert {place(p) for p in (before[0], before[2])} < {place(p) for p in driver.pods(ns)}
    assert not status(driver, "Job", ns, "ignores").get("failed")


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("evict", "Pod {}/{} has condition DisruptionTarget matching FailJob rule at index 0"),
        (64, "Container trainer for pod {}/{} failed with exit code 64 matching FailJob rule at index 1"),
    ],
)
def test_a_job_that_a_rule_fails_says_why_and_waits_for_its_pods(
    driver: PodDriver, ns: str, end: Any, message: str
) -> None:
    driver.api.create(job("ruled", ns, 2, podFailurePolicy={"rules": GANG}))
    pods = running(driver, ns, 2)
    driver.evict(pods[1]) if end == "evict" else driver.finish(pods[1], end)
    target = driver.wait_for("Job", ns, "ruled", "FailureTarget")
    assert (target["reason"], target["message"]) == ("PodFailurePolicy", message.format(*place(pods[1])))
    left = driver.wait_until(lambda: [p for p in driver.pods(ns) if "deletionTimestamp" in p["metadata"]])
    assert not [c for c in status(driver, "Job", ns, "ruled")["conditions"] if c["type"] == "Failed"]
    driver.end(left[0])
    failed = driver.wait_for("Job", ns, "ruled", "Failed")
    assert (failed["reason"], failed["message"]) == (target["reason"], target["message"])


@pytest.mark.parametrize(("policy", "type_"), [({"rules": [{"succeededIndexes": "0"}]}, "Complete"), (None, "Failed")])
def test_rank_0_alone_decides_where_the_success_policy_says_so(
    driver: PodDriver, ns: str, policy: Any, type_: str
) -> None:
    driver.api.create(job("ranks", ns, 2, **({"successPolicy": policy} if policy else {})))
    pods = running(driver, ns, 2)
    driver.finish(pods[0], 0)
    # Seen together, the failure would come first: the back-off limit is looked at before the success policy.
    driver.wait_until(lambda: status(driver, "Job", ns, "ranks").get("completedIndexes") == "0")
    driver.finish(pods[1], 1)
    end = driver.wait_for("Job", ns, "ranks", type_)
    assert end["reason"] == ("SuccessPolicy" if policy else "BackoffLimitExceeded")


def test_exit_0_on_sigterm_is_success_for_ever(driver: PodDriver, ns: str) -> None:
    driver.api.create(jobset("politely", ns))
    pods = running(driver, ns, 2)
    driver.evict(pods[1], code=0)
    done = driver.wait_until(lambda: status(driver, "Job", ns, "politely-trainer-0").get("completedIndexes"))
    assert done == "1"
    assert [place(p) for p in driver.wait_for_pods(1, ns)] == [place(pods[0])]
    assert status(driver, "JobSet", ns, "politely").get("restarts", 0) == 0


@pytest.mark.parametrize("end", ["evict", 143])
def test_a_pre_empted_gang_restarts_whole_and_uncounted(driver: PodDriver, ns: str, end: Any) -> None:
    driver.api.create(jobset("gang", ns, max_restarts=0))
    before = running(driver, ns, 2)
    driver.evict(before[1]) if end == "evict" else driver.finish(before[1], end)
    driver.wait_until(
        lambda: "deletionTimestamp" in (driver.api.find("Pod", *place(before[0])) or before[0])["metadata"]
    )
    assert {place(p) for p in driver.pods(ns)} <= {place(p) for p in before}  # none before the last of the old is gone
    driver.end(before[0])
    driver.wait_until(lambda: status(driver, "JobSet", ns, "gang").get("restarts") == 1)
    after = driver.wait_for_pods(2, ns, "jobset.sigs.k8s.io/restart-attempt=1")
    assert not {p["metadata"]["uid"] for p in after} & {p["metadata"]["uid"] for p in before}
    assert not status(driver, "JobSet", ns, "gang").get("restartsCountTowardsMax")
    service = driver.api.find("Service", ns, "gang")
    assert service and service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"]


def test_exit_64_fails_the_jobset_at_once(driver: PodDriver, ns: str) -> None:
    driver.api.create(jobset("never", ns, max_restarts=5))
    pods = running(driver, ns, 2)
    driver.finish(pods[0], 64)
    driver.wait_until(lambda: "deletionTimestamp" in (driver.api.find("Pod", *place(pods[1])) or pods[1])["metadata"])
    driver.end(pods[1])
    failed = driver.wait_for("JobSet", ns, "never", "Failed")
    message = "applying FailJobSet failure policy action (first failed job: never-trainer-0)"
    assert (failed["reason"], failed["message"]) == ("FailJobSetFailurePolicyAction", message)
    assert status(driver, "JobSet", ns, "never")["terminalState"] == "Failed"


def test_crashes_count_and_the_last_one_fails_the_jobset(driver: PodDriver, ns: str) -> None:
    driver.api.create(jobset("crashes", ns, pods=1, max_restarts=1))
    for restart in range(2):
        driver.wait_until(lambda n=restart: status(driver, "JobSet", ns, "crashes").get("restarts", 0) == n)
        label = f"jobset.sigs.k8s.io/restart-attempt={restart}"
        driver.finish(running(driver, ns, 1, label)[0], 1)
    failed = driver.wait_for("JobSet", ns, "crashes", "Failed")
    assert failed["reason"] == "ReachedMaxRestarts"
    assert status(driver, "JobSet", ns, "crashes")["restartsCountTowardsMax"] == 1


def test_a_jobset_completes_and_says_so(driver: PodDriver, ns: str) -> None:
    driver.api.create(jobset("fine", ns))
    pods = running(driver, ns, 2)
    rows = driver.wait_until(
        lambda: [r for r in status(driver, "JobSet", ns, "fine").get("replicatedJobsStatus", []) if r["ready"]]
    )
    assert rows[0]["name"] == "trainer" and rows[0]["active"] == 1
    for pod in pods:
        driver.finish(pod, 0)
    assert driver.wait_for("JobSet", ns, "fine", "Completed")["reason"] == "AllJobsCompleted"
    assert status(driver, "Job", ns, "fine-trainer-0")["completedIndexes"] in ("0,1", "0-1")


def test_budget_of_none_refuses_an_eviction(driver: PodDriver, ns: str) -> None:
    driver.api.create(job("guarded", ns, 1, template=pod_template() | {"metadata": {"labels": {"app": "guarded"}}}))
    spec = {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "guarded"}}}
    body = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "none", "namespace": ns}}
    driver.api.create(body | {"spec": spec})
    [pod] = running(driver, ns, 1)
    assert driver.evict(pod) == 429
    after = driver.api.find("Pod", *place(pod))
    assert after and "deletionTimestamp" not in after["metadata"] and phase(after) == "Running"


@pytest.mark.parametrize("propagation", ["Foreground", "Background"])
def test_a_deleted_jobset_takes_all_with_it_last_of_all_itself(driver: PodDriver, ns: str, propagation: str) -> None:
    driver.api.create(jobset("doomed", ns))
    pods = running(driver, ns, 2)
    driver.api.delete("JobSet", ns, "doomed", propagationPolicy=propagation)
    driver.wait_until(lambda: all("deletionTimestamp" in p["metadata"] for p in driver.pods(ns)))
    assert (driver.api.find("JobSet", ns, "doomed") is None) == (propagation == "Background")
    for pod in pods:
        driver.end(pod)
    for kind, name in (("JobSet", "doomed"), ("Job", "doomed-trainer-0"), ("Service", "doomed")):
        driver.wait_gone(kind, ns, name)
    driver.wait_until(lambda: driver.pods(ns) == [])  # in the background they may outlive their owners for a moment


def test_a_suspended_jobset_has_no_pods_until_it_is_resumed(driver: PodDriver, ns: str) -> None:
    waits = jobset("waits", ns)
    waits["spec"]["suspend"] = True
    driver.api.create(waits)
    driver.wait_for("JobSet", ns, "waits", "Suspended")
    assert driver.pods(ns) == []
    driver.api.patch("JobSet", ns, "waits", {"spec": {"suspend": False}})
    pods = running(driver, ns, 2)
    driver.api.patch("JobSet", ns, "waits", {"spec": {"suspend": True}})
    driver.wait_until(lambda: all("deletionTimestamp" in p["metadata"] for p in driver.pods(ns)))
    for pod in pods:
        driver.end(pod)
    driver.wait_until(lambda: driver.pods(ns) == [])
    assert not status(driver, "Job", ns, "waits-trainer-0").get("failed")


def test_failed_pods_are_replaced_up_to_the_limit(driver: PodDriver, ns: str) -> None:
    driver.api.create(job("again", ns, 1, backoffLimit=1))
    driver.finish(running(driver, ns, 1)[0], 1)
    driver.finish(running(driver, ns, 1)[0], 1)
    assert driver.wait_for("Job", ns, "again", "Failed")["reason"] == "BackoffLimitExceeded"
    assert status(driver, "Job", ns, "again")["failed"] == 2


@pytest.mark.slow
def test_a_job_has_a_deadline_and_a_time_to_live(driver: PodDriver, ns: str) -> None:
    driver.api.create(job("late", ns, 1, ttlSecondsAfterFinished=1))
    [pod] = running(driver, ns, 1)
    driver.api.patch("Job", ns, "late", {"spec": {"activeDeadlineSeconds": 1}})
    assert driver.wait_for("Job", ns, "late", "FailureTarget")["reason"] == "DeadlineExceeded"
    driver.wait_until(lambda: "deletionTimestamp" in driver.pods(ns)[0]["metadata"])
    driver.end(pod)
    driver.wait_gone("Job", ns, "late")


@ours
def test_what_a_controller_raises_reaches_the_test() -> None:
    with pytest.raises(AssertionError, match="has no RestartJob"), cluster() as driver:
        driver.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}})
        driver.api.create(jobset("odd", "n", pods=1, rules=[{"name": "odd", "action": "RestartJob"}]))
        driver.finish(running(driver, "n", 1)[0], 64)
        driver.wait_for("Job", "n", "odd-trainer-0", "Failed")


@pytest.mark.parametrize(("reference", "annotated", "end"), [
    ("none", False, "Bound"), ("by name", False, "Bound"), ("by uid", False, "Bound"), ("by uid", True, "Bound"),
    ("by name", True, "Lost"), ("another's", False, "Pending"),
])  # fmt: skip
def test_a_claim_is_bound_to_the_volume_of_its_uid(
    driver: PodDriver, ns: str, reference: str, annotated: bool, end: str
) -> None:
    """By hand with the controller's annotation it takes the uid too: a name is not enough then."""
    core, of = {"apiVersion": "v1"}, {"storageClassName": "", "accessModes": ["ReadWriteMany"]}
    metadata = {"name": "claim", "namespace": ns, "annotations": {COMPLETED: "yes"} if annotated else {}}
    spec = of | {"volumeName": ns, "resources": {"requests": {"storage": "1Gi"}}}
    made = driver.api.create({**core, "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec})
    known = {"kind": "PersistentVolumeClaim", "namespace": ns, "name": "claim"}
    references = {"none": None, "by name": known, "by uid": known | {"uid": made["metadata"]["uid"]},
                  "another's": known | {"uid": "1"}}  # fmt: skip
    spec = of | {"capacity": {"storage": "1Gi"}, "nfs": {"server": "127.0.0.1", "path": "/"}}
    spec |= {"claimRef": references[reference]} if references[reference] else {}
    driver.api.create({**core, "kind": "PersistentVolume", "metadata": {"name": ns}, "spec": spec})
    driver.wait_until(lambda: status(driver, "PersistentVolumeClaim", ns, "claim").get("phase") == end)
    driver.api.delete("PersistentVolume", "", ns)


@given(st.sets(st.integers(0, 40)))
def test_completed_indexes_are_written_as_they_are_read(indexes: set[int]) -> None:
    assert job_controller.parsed(job_controller.ranges(indexes)) == indexes
