"""The proved behaviour of Jobs and JobSets; with KUBECONFIG set, the real controllers answer instead of ours."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from . import jobs as job_controller
from .gangs import GANG, TARGET, cluster, job, jobset, ours, pod_template, running, status
from .objects import labels, notes, phase, place
from .pod_driver import Hands


@pytest.mark.parametrize("mode", ["Indexed", "NonIndexed"])
def test_three_parallel_pods_of_one_completion_are_one_pod(hands: Hands, ns: str, mode: str) -> None:
    hands.api.create(job("seed", ns, completions=1, parallelism=3, completionMode=mode))
    running(hands, ns, 1)
    hands.wait_until(lambda: status(hands, "Job", ns, "seed").get("ready") == 1)
    assert len(hands.pods(ns)) == 1


def test_an_indexed_job_has_a_pod_and_a_name_for_each_rank(hands: Hands, ns: str) -> None:
    hands.api.create(job("gang", ns, template=pod_template(subdomain="gang")))
    pods = hands.wait_for_pods(3, ns)
    assert [notes(p)["batch.kubernetes.io/job-completion-index"] for p in pods] == ["0", "1", "2"]
    assert [(p["spec"]["hostname"], p["spec"]["subdomain"]) for p in pods] == [(f"gang-{i}", "gang") for i in range(3)]
    assert all(labels(p)["job-name"] == "gang" and place(p)[1].startswith(f"gang-{i}-") for i, p in enumerate(pods))
    source = pods[0]["spec"]["containers"][0]["env"][-1]
    assert source["name"] == "JOB_COMPLETION_INDEX" and "fieldRef" in source["valueFrom"]


def test_one_eviction_kills_a_job_without_a_pod_failure_policy(hands: Hands, ns: str) -> None:
    hands.api.create(job("bare", ns))
    pods = running(hands, ns, 3)
    assert hands.evict(pods[1]) == 201
    hands.wait_for("Job", ns, "bare", "FailureTarget")
    for pod in (pods[0], pods[2]):
        hands.end(pod)
    failed = hands.wait_for("Job", ns, "bare", "Failed")
    assert (failed["reason"], failed["message"]) == (
        "BackoffLimitExceeded",
        "Job has reached the specified backoff limit",
    )


def test_ignored_disruptions_replace_one_rank_and_leave_its_peers(hands: Hands, ns: str) -> None:
    hands.api.create(job("ignores", ns, podFailurePolicy={"rules": [{"action": "Ignore"} | TARGET]}))
    before = running(hands, ns, 3)
    hands.evict(before[1])
    after = hands.wait_until(lambda: [p for p in hands.pods(ns) if place(p) not in map(place, before)])
    assert [labels(p)["batch.kubernetes.io/job-completion-index"] for p in after] == ["1"]
    assert {place(p) for p in (before[0], before[2])} < {place(p) for p in hands.pods(ns)}
    assert not status(hands, "Job", ns, "ignores").get("failed")


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("evict", "Pod {}/{} has condition DisruptionTarget matching FailJob rule at index 0"),
        (64, "Container trainer for pod {}/{} failed with exit code 64 matching FailJob rule at index 1"),
    ],
)
def test_a_job_that_a_rule_fails_says_why_and_waits_for_its_pods(hands: Hands, ns: str, end: Any, message: str) -> None:
    hands.api.create(job("ruled", ns, 2, podFailurePolicy={"rules": GANG}))
    pods = running(hands, ns, 2)
    hands.evict(pods[1]) if end == "evict" else hands.finish(pods[1], end)
    target = hands.wait_for("Job", ns, "ruled", "FailureTarget")
    assert (target["reason"], target["message"]) == ("PodFailurePolicy", message.format(*place(pods[1])))
    left = hands.wait_until(lambda: [p for p in hands.pods(ns) if "deletionTimestamp" in p["metadata"]])
    assert not [c for c in status(hands, "Job", ns, "ruled")["conditions"] if c["type"] == "Failed"]
    hands.end(left[0])
    failed = hands.wait_for("Job", ns, "ruled", "Failed")
    assert (failed["reason"], failed["message"]) == (target["reason"], target["message"])


@pytest.mark.parametrize(("policy", "type_"), [({"rules": [{"succeededIndexes": "0"}]}, "Complete"), (None, "Failed")])
def test_rank_0_alone_decides_where_the_success_policy_says_so(hands: Hands, ns: str, policy: Any, type_: str) -> None:
    hands.api.create(job("ranks", ns, 2, **({"successPolicy": policy} if policy else {})))
    pods = running(hands, ns, 2)
    hands.finish(pods[0], 0)
    # Seen together, the failure would come first: the back-off limit is looked at before the success policy.
    hands.wait_until(lambda: status(hands, "Job", ns, "ranks").get("completedIndexes") == "0")
    hands.finish(pods[1], 1)
    end = hands.wait_for("Job", ns, "ranks", type_)
    assert end["reason"] == ("SuccessPolicy" if policy else "BackoffLimitExceeded")


def test_exit_0_on_sigterm_is_success_for_ever(hands: Hands, ns: str) -> None:
    hands.api.create(jobset("politely", ns))
    pods = running(hands, ns, 2)
    hands.evict(pods[1], code=0)
    done = hands.wait_until(lambda: status(hands, "Job", ns, "politely-trainer-0").get("completedIndexes"))
    assert done == "1"
    assert [place(p) for p in hands.wait_for_pods(1, ns)] == [place(pods[0])]
    assert status(hands, "JobSet", ns, "politely").get("restarts", 0) == 0


@pytest.mark.parametrize("end", ["evict", 143])
def test_a_pre_empted_gang_restarts_whole_and_uncounted(hands: Hands, ns: str, end: Any) -> None:
    hands.api.create(jobset("gang", ns, max_restarts=0))
    before = running(hands, ns, 2)
    hands.evict(before[1]) if end == "evict" else hands.finish(before[1], end)
    hands.wait_until(lambda: "deletionTimestamp" in (hands.api.find("Pod", *place(before[0])) or before[0])["metadata"])
    assert {place(p) for p in hands.pods(ns)} <= {place(p) for p in before}  # none before the last of the old is gone
    hands.end(before[0])
    hands.wait_until(lambda: status(hands, "JobSet", ns, "gang").get("restarts") == 1)
    after = hands.wait_for_pods(2, ns, "jobset.sigs.k8s.io/restart-attempt=1")
    assert not {p["metadata"]["uid"] for p in after} & {p["metadata"]["uid"] for p in before}
    assert not status(hands, "JobSet", ns, "gang").get("restartsCountTowardsMax")
    service = hands.api.find("Service", ns, "gang")
    assert service and service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"]


def test_exit_64_fails_the_jobset_at_once(hands: Hands, ns: str) -> None:
    hands.api.create(jobset("never", ns, max_restarts=5))
    pods = running(hands, ns, 2)
    hands.finish(pods[0], 64)
    hands.wait_until(lambda: "deletionTimestamp" in (hands.api.find("Pod", *place(pods[1])) or pods[1])["metadata"])
    hands.end(pods[1])
    failed = hands.wait_for("JobSet", ns, "never", "Failed")
    message = "applying FailJobSet failure policy action (first failed job: never-trainer-0)"
    assert (failed["reason"], failed["message"]) == ("FailJobSetFailurePolicyAction", message)
    assert status(hands, "JobSet", ns, "never")["terminalState"] == "Failed"


def test_crashes_count_and_the_last_one_fails_the_jobset(hands: Hands, ns: str) -> None:
    hands.api.create(jobset("crashes", ns, pods=1, max_restarts=1))
    for restart in range(2):
        hands.wait_until(lambda n=restart: status(hands, "JobSet", ns, "crashes").get("restarts", 0) == n)
        label = f"jobset.sigs.k8s.io/restart-attempt={restart}"
        hands.finish(running(hands, ns, 1, label)[0], 1)
    failed = hands.wait_for("JobSet", ns, "crashes", "Failed")
    assert failed["reason"] == "ReachedMaxRestarts"
    assert status(hands, "JobSet", ns, "crashes")["restartsCountTowardsMax"] == 1


def test_a_jobset_completes_and_says_so(hands: Hands, ns: str) -> None:
    hands.api.create(jobset("fine", ns))
    pods = running(hands, ns, 2)
    rows = hands.wait_until(
        lambda: [r for r in status(hands, "JobSet", ns, "fine").get("replicatedJobsStatus", []) if r["ready"]]
    )
    assert rows[0]["name"] == "trainer" and rows[0]["active"] == 1
    for pod in pods:
        hands.finish(pod, 0)
    assert hands.wait_for("JobSet", ns, "fine", "Completed")["reason"] == "AllJobsCompleted"
    assert status(hands, "Job", ns, "fine-trainer-0")["completedIndexes"] in ("0,1", "0-1")


def test_a_budget_of_none_refuses_the_eviction_and_delivers_no_sigterm(hands: Hands, ns: str) -> None:
    hands.api.create(job("guarded", ns, 1, template=pod_template() | {"metadata": {"labels": {"app": "guarded"}}}))
    spec = {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "guarded"}}}
    body = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "none", "namespace": ns}}
    hands.api.create(body | {"spec": spec})
    [pod] = running(hands, ns, 1)
    assert hands.evict(pod) == 429
    after = hands.api.find("Pod", *place(pod))
    assert after and "deletionTimestamp" not in after["metadata"] and phase(after) == "Running"


@pytest.mark.parametrize("propagation", ["Foreground", "Background"])
def test_a_deleted_jobset_takes_all_with_it_last_of_all_itself(hands: Hands, ns: str, propagation: str) -> None:
    hands.api.create(jobset("doomed", ns))
    pods = running(hands, ns, 2)
    hands.api.delete("JobSet", ns, "doomed", propagationPolicy=propagation)
    hands.wait_until(lambda: all("deletionTimestamp" in p["metadata"] for p in hands.pods(ns)))
    assert (hands.api.find("JobSet", ns, "doomed") is None) == (propagation == "Background")
    for pod in pods:
        hands.end(pod)
    for kind, name in (("JobSet", "doomed"), ("Job", "doomed-trainer-0"), ("Service", "doomed")):
        hands.wait_gone(kind, ns, name)
    hands.wait_until(lambda: hands.pods(ns) == [])  # in the background they may outlive their owners for a moment


def test_a_suspended_jobset_has_no_pods_until_it_is_resumed(hands: Hands, ns: str) -> None:
    waits = jobset("waits", ns)
    waits["spec"]["suspend"] = True
    hands.api.create(waits)
    hands.wait_for("JobSet", ns, "waits", "Suspended")
    assert hands.pods(ns) == []
    hands.api.patch("JobSet", ns, "waits", {"spec": {"suspend": False}})
    pods = running(hands, ns, 2)
    hands.api.patch("JobSet", ns, "waits", {"spec": {"suspend": True}})
    hands.wait_until(lambda: all("deletionTimestamp" in p["metadata"] for p in hands.pods(ns)))
    for pod in pods:
        hands.end(pod)
    hands.wait_until(lambda: hands.pods(ns) == [])
    assert not status(hands, "Job", ns, "waits-trainer-0").get("failed")


@ours
def test_failed_pods_are_replaced_up_to_the_limit(hands: Hands, ns: str) -> None:
    hands.api.create(job("again", ns, 1, backoffLimit=1))
    hands.finish(running(hands, ns, 1)[0], 1)
    hands.finish(running(hands, ns, 1)[0], 1)
    assert hands.wait_for("Job", ns, "again", "Failed")["reason"] == "BackoffLimitExceeded"
    assert status(hands, "Job", ns, "again")["failed"] == 2


@ours
def test_a_job_has_a_deadline_and_a_time_to_live(hands: Hands, ns: str) -> None:
    hands.api.create(job("late", ns, 1, ttlSecondsAfterFinished=1))
    [pod] = running(hands, ns, 1)
    hands.api.patch("Job", ns, "late", {"spec": {"activeDeadlineSeconds": 1}})
    assert hands.wait_for("Job", ns, "late", "FailureTarget")["reason"] == "DeadlineExceeded"
    hands.wait_until(lambda: "deletionTimestamp" in hands.pods(ns)[0]["metadata"])
    hands.end(pod)
    hands.wait_gone("Job", ns, "late")


@ours
def test_what_a_controller_raises_reaches_the_test() -> None:
    with pytest.raises(AssertionError, match="has no RestartJob"), cluster() as hands:
        hands.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}})
        hands.api.create(jobset("odd", "n", pods=1, rules=[{"name": "odd", "action": "RestartJob"}]))
        hands.finish(running(hands, "n", 1)[0], 64)
        hands.wait_for("Job", "n", "odd-trainer-0", "Failed")


@given(st.sets(st.integers(0, 40)))
def test_completed_indexes_are_written_as_they_are_read(indexes: set[int]) -> None:
    assert job_controller.parsed(job_controller.ranges(indexes)) == indexes
