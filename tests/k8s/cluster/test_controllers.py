"""The proved behaviour of the real controllers, one test each; with KUBECONFIG set, the real ones answer instead."""

from __future__ import annotations

import os
import uuid
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from . import jobs as job_controller
from .api import Api
from .controllers import controllers
from .hands import Hands
from .kinds import Object
from .objects import labels, notes, phase, place, quantity
from .server import api_server

KUBECONFIG = os.environ.get("KUBECONFIG")
ours = pytest.mark.skipif(bool(KUBECONFIG), reason="needs a scheduler, an operator or a clock that is ours")
TARGET = {"onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}


def exits(*codes: int) -> Object:
    return {"onExitCodes": {"containerName": "trainer", "operator": "In", "values": list(codes)}}


GANG = [{"action": "FailJob"} | TARGET, {"action": "FailJob"} | exits(64, 143)]
RULES = [
    {"name": "never", "action": "FailJobSet", "onJobFailureMessagePatterns": [".*exit code 64.*"]},
    {"name": "again", "action": "RestartJobSetAndIgnoreMaxRestarts", "onJobFailureReasons": ["PodFailurePolicy"]},
]


@contextmanager
def cluster(**options: Any) -> Generator[Hands]:
    """The hands in the tests' cluster, or in the one that KUBECONFIG names."""
    if KUBECONFIG:
        yield Hands(Api.from_kubeconfig(Path(KUBECONFIG)), patience_s=60)
        return
    with api_server() as server, controllers(server.storage, **options):
        yield Hands(Api(server.url, server.token))


@pytest.fixture
def hands() -> Iterator[Hands]:
    with cluster() as made:
        yield made


@pytest.fixture
def ns(hands: Hands) -> Iterator[str]:
    name = f"t-{uuid.uuid4().hex[:8]}"
    hands.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    hands.api.delete("Namespace", "", name)


def pod_template(grace_s: int = 5, **spec: Any) -> Object:
    container = {"name": "trainer", "image": "example.com/trainer:1", "command": ["python"]} | spec.pop("container", {})
    return {
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": grace_s, "containers": [container]} | spec
    }


def job(name: str, ns: str, pods: int = 3, template: Object | None = None, **spec: Any) -> Object:
    inner = {"completionMode": "Indexed", "completions": pods, "parallelism": pods, "backoffLimit": 0}
    inner |= {"template": template or pod_template()} | spec
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": ns}, "spec": inner}


def jobset(name: str, ns: str, pods: int = 2, max_restarts: int = 1, rules: Any = RULES, **spec: Any) -> Object:
    inner = job("", ns, pods, podFailurePolicy={"rules": GANG}, **spec)["spec"]
    replicated = [{"name": "trainer", "replicas": 1, "template": {"spec": inner}}]
    policy = {"maxRestarts": max_restarts, "rules": rules}
    metadata = {"name": name, "namespace": ns}
    body: Object = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata}
    return body | {"spec": {"replicatedJobs": replicated, "failurePolicy": policy}}


def running(hands: Hands, ns: str, number: int, label: str = "") -> list[Object]:
    pods = hands.wait_for_pods(number, ns, label)
    for pod in pods:
        hands.run(pod)
    return pods


def status(hands: Hands, kind: str, ns: str, name: str) -> Object:
    return (hands.api.find(kind, ns, name) or {}).get("status") or {}


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
        lambda: [r for r in status(hands, "JobSet", ns, "fine")["replicatedJobsStatus"] if r["ready"]]
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
    assert hands.pods(ns) == []


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
    hands.api.create(job("late", ns, 1, activeDeadlineSeconds=1, ttlSecondsAfterFinished=1))
    [pod] = running(hands, ns, 1)
    assert hands.wait_for("Job", ns, "late", "FailureTarget")["reason"] == "DeadlineExceeded"
    hands.wait_until(lambda: "deletionTimestamp" in hands.pods(ns)[0]["metadata"])
    hands.end(pod)
    hands.wait_gone("Job", ns, "late")


ANY = [{"operator": "Exists"}]


def gpus(number: int) -> Object:
    return {"resources": {"limits": {"nvidia.com/gpu": str(number)}}}


@ours
def test_the_scheduler_starts_part_of_a_gang(hands: Hands, ns: str) -> None:
    taint = {"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}
    for i in range(3):
        hands.node(f"gpu-{i}", {"cpu": "8", "nvidia.com/gpu": "8"}, {"pool": "training"}, [taint])
    hands.node("small", {"cpu": "8"}, {"pool": "training"}, [])
    tolerates = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    template = pod_template(container=gpus(8), tolerations=tolerates, nodeSelector={"pool": "training"})
    hands.api.create(job("half", ns, 4, template=template))
    hands.wait_until(lambda: sum("nodeName" in p["spec"] for p in hands.pods(ns)) == 3)
    [left] = hands.wait_until(lambda: [p for p in hands.pods(ns) if unschedulable(p)])
    assert unschedulable(left).startswith("0/4 nodes are available: 4 Insufficient nvidia.com/gpu.")
    assert hands.api.list("Event", ns)[0][0]["reason"] == "FailedScheduling"


@ours
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({}, "1 node(s) had untolerated taint {gpu: yes}"),
        ({"tolerations": [{"key": "tpu", "operator": "Exists"}]}, "1 node(s) had untolerated taint {gpu: yes}"),
        (
            {"tolerations": [{"operator": "Exists"}], "nodeSelector": {"a": "b"}},
            "1 node(s) didn't match Pod's node affinity",
        ),
        ({"tolerations": [{"operator": "Exists"}], "container": gpus(1)}, "1 Insufficient nvidia.com/gpu"),
    ],
)
def test_the_scheduler_says_why_a_pod_waits(hands: Hands, ns: str, spec: Any, message: str) -> None:
    hands.node("only", {"cpu": "1"}, {}, [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}])
    hands.api.create(job("waits", ns, 1, template=pod_template(**spec)))
    [pod] = hands.wait_until(lambda: [p for p in hands.pods(ns) if unschedulable(p)])
    assert message in unschedulable(pod)


def unschedulable(pod: Object) -> str:
    conditions = pod["status"].get("conditions") or []
    return next((c["message"] for c in conditions if c.get("reason") == "Unschedulable"), "")


@ours
def test_pods_of_a_lost_node_are_disrupted(hands: Hands, ns: str) -> None:
    for i in range(2):
        hands.node(f"spot-{i}", {"nvidia.com/gpu": "8"})
    hands.api.create(jobset("spot", ns, 2, template=pod_template(container=gpus(8))))
    pods = running(hands, ns, 2)
    lost = next(p for p in hands.pods(ns) if p["spec"]["nodeName"] == "spot-1")
    hands.api.delete("Node", "", "spot-1")
    hands.wait_gone("Pod", *place(lost))
    hands.end(next(p for p in pods if place(p) != place(lost)))
    hands.wait_until(lambda: status(hands, "JobSet", ns, "spot").get("restarts") == 1)


def kueue(hands: Hands, ns: str, quota: int = 24) -> None:
    api = "kueue.x-k8s.io/v1beta2"
    flavor = {"nodeLabels": {"karpenter.sh/capacity-type": "spot"}}
    hands.api.create({"apiVersion": api, "kind": "ResourceFlavor", "metadata": {"name": "spot"}, "spec": flavor})
    offer = {"name": "spot", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": quota}]}
    spec = {"namespaceSelector": {}, "resourceGroups": [{"coveredResources": ["nvidia.com/gpu"], "flavors": [offer]}]}
    hands.api.create({"apiVersion": api, "kind": "ClusterQueue", "metadata": {"name": "training"}, "spec": spec})
    queue = {"apiVersion": api, "kind": "LocalQueue", "metadata": {"name": "training", "namespace": ns}}
    hands.api.create(queue | {"spec": {"clusterQueue": "training"}})


def queued(name: str, ns: str, pods: int = 3) -> Object:
    body = jobset(name, ns, pods, template=pod_template(container=gpus(8)))
    body["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "training"}
    return body


def workload(hands: Hands, ns: str, of: str, type_: str) -> Object:
    for found in hands.api.list("Workload", ns)[0]:
        if place(found)[1].startswith(f"jobset-{of}-"):
            conditions = (found.get("status") or {}).get("conditions") or []
            return next((c for c in conditions if c["type"] == type_), {})
    return {}


@ours
def test_a_second_gang_has_no_pods_until_the_first_has_freed_its_quota(hands: Hands, ns: str) -> None:
    kueue(hands, ns)
    hands.api.create(queued("first", ns))
    first = running(hands, ns, 3)
    assert all(p["spec"]["nodeSelector"] == {"karpenter.sh/capacity-type": "spot"} for p in first)
    hands.api.create(queued("second", ns))
    said = hands.wait_until(lambda: workload(hands, ns, "second", "QuotaReserved"))
    problem = "insufficient unused quota for nvidia.com/gpu in flavor spot, 24 more needed"
    assert said["message"] == f"couldn't assign flavors to pod set trainer: {problem}"
    assert (said["status"], len(hands.pods(ns))) == ("False", 3)
    for pod in first:
        hands.finish(pod, 0)
    label = "jobset.sigs.k8s.io/jobset-name=second"
    assert len(hands.wait_for_pods(3, ns, label)) == 3
    assert workload(hands, ns, "first", "Finished")["status"] == "True"
    assert workload(hands, ns, "second", "Admitted")["status"] == "True"


@ours
def test_a_gang_that_asks_for_more_than_there_is_never_comes(hands: Hands, ns: str) -> None:
    kueue(hands, ns, quota=16)
    hands.api.create(queued("big", ns))
    said = hands.wait_until(lambda: workload(hands, ns, "big", "QuotaReserved"))
    assert said["message"].endswith("+ current podset request (24) > maximum capacity (16)")
    assert hands.pods(ns) == []


@ours
def test_a_gang_that_is_not_ready_in_time_is_evicted_and_comes_again() -> None:
    with cluster(pods_ready_timeout_s=0.5, requeue_s=0.1) as hands:
        hands.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kueue"}})
        kueue(hands, "kueue")
        hands.api.create(queued("slow", "kueue"))
        before = hands.wait_for_pods(3, "kueue")
        evicted = hands.wait_until(lambda: workload(hands, "kueue", "slow", "Evicted"))
        assert evicted["reason"] == "PodsReadyTimeout" and evicted["message"].startswith(
            "Exceeded the PodsReady timeout"
        )
        hands.wait_until(lambda: all("deletionTimestamp" in p["metadata"] for p in hands.pods("kueue")))
        for pod in before:
            hands.end(pod)
        after = hands.wait_until(lambda: [p for p in hands.pods("kueue") if place(p) not in map(place, before)])
        assert not {p["metadata"]["uid"] for p in after} & {p["metadata"]["uid"] for p in before}


RESTART = {"event": "PodFailed", "action": "RestartJob"}


def volcano(name: str, ns: str, pods: int = 2, policies: Any = None, **spec: Any) -> Object:
    right = [
        {"exitCode": 64, "action": "AbortJob"},
        RESTART,
        {"event": "PodEvicted", "action": "RestartJob"},
    ]
    task = {"name": "trainer", "replicas": pods, "template": pod_template(container=gpus(8))}
    inner = {"minAvailable": pods, "queue": "training", "schedulerName": "volcano", "plugins": {"svc": [], "env": []}}
    inner |= {"policies": right if policies is None else policies, "tasks": [task]} | spec
    metadata = {"name": name, "namespace": ns}
    return {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": metadata, "spec": inner}


def state(hands: Hands, ns: str, name: str) -> str:
    return (status(hands, "VolcanoJob", ns, name).get("state") or {}).get("phase", "")


@ours
def test_volcano_places_all_or_none(hands: Hands, ns: str) -> None:
    hands.node("gpu-0", {"nvidia.com/gpu": "8"})
    hands.api.create(volcano("gang", ns))
    hands.wait_until(lambda: [p for p in hands.pods(ns) if "pod group is not ready" in unschedulable(p)])
    assert not [p for p in hands.pods(ns) if "nodeName" in p["spec"]]
    hands.node("gpu-1", {"nvidia.com/gpu": "8"})
    pods = running(hands, ns, 2)
    assert [(place(p)[1], p["spec"]["hostname"], p["spec"]["subdomain"]) for p in pods] == [
        (f"gang-trainer-{i}", f"gang-trainer-{i}", "gang") for i in range(2)
    ]
    hands.wait_until(lambda: state(hands, ns, "gang") == "Running")


@ours
@pytest.mark.parametrize(
    ("code", "policies", "phases"),
    [
        (64, None, ["Aborted"]),
        (1, None, ["Pending", "Running"]),
        (
            64,
            [{"event": "PodFailed", "action": "RestartJob"}, {"exitCode": 64, "action": "AbortJob"}],
            ["Pending", "Running"],
        ),
        (0, None, ["Completed"]),
    ],
)
def test_volcano_takes_the_first_policy_that_fits(
    hands: Hands, ns: str, code: int, policies: Any, phases: list[str]
) -> None:
    hands.api.create(volcano("ordered", ns, policies=policies))
    pods = running(hands, ns, 2)
    hands.wait_until(lambda: state(hands, ns, "ordered") == "Running")
    for pod in pods if code == 0 else pods[:1]:
        hands.finish(pod, code)
    if code:
        hands.wait_until(lambda: "deletionTimestamp" in (hands.api.find("Pod", *place(pods[1])) or pods[1])["metadata"])
        hands.end(pods[1])
    hands.wait_until(lambda: state(hands, ns, "ordered") in phases)
    assert status(hands, "VolcanoJob", ns, "ordered")["retryCount"] == (phases[0] == "Pending")


@ours
def test_volcano_counts_evictions_as_retries_and_gives_up(hands: Hands, ns: str) -> None:
    hands.api.create(volcano("spent", ns, pods=1, maxRetry=2))
    for retry in range(2):
        hands.wait_until(lambda n=retry: status(hands, "VolcanoJob", ns, "spent").get("retryCount") == n)
        [pod] = running(hands, ns, 1)
        hands.wait_until(lambda: state(hands, ns, "spent") == "Running")
        hands.evict(pod)
    hands.wait_until(lambda: state(hands, ns, "spent") == "Failed")


@ours
@pytest.mark.parametrize(("code", "deployment", "job_status"), [(0, "Complete", "SUCCEEDED"), (64, "Failed", "FAILED")])
def test_a_rayjob_ends_as_its_entrypoint_does(
    hands: Hands, ns: str, code: int, deployment: str, job_status: str
) -> None:
    cluster_spec = {"headGroupSpec": {"rayStartParams": {}, "template": pod_template()}}
    spec = {"entrypoint": "python -m x", "backoffLimit": 0, "rayClusterSpec": cluster_spec}
    metadata = {"name": "ray", "namespace": ns}
    hands.api.create({"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": metadata, "spec": spec})
    running(hands, ns, 1, "ray.io/node-type=head")
    [submitter] = running(hands, ns, 1, "ray.io/node-type=submitter")
    assert submitter["spec"]["containers"][0]["command"] == ["python", "-m", "x"]
    hands.finish(submitter, code)
    hands.wait_until(lambda: status(hands, "RayJob", ns, "ray").get("jobDeploymentStatus") == deployment)
    end = status(hands, "RayJob", ns, "ray")
    assert end["jobStatus"] == job_status
    assert not code or end["message"].startswith("Job entrypoint command failed with exit code 64, last available logs")


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


@pytest.mark.parametrize(
    ("text", "value"),
    [("191450m", "191.45"), ("8", "8"), ("1Gi", str(2**30)), ("2k", "2000"), ("1937332Mi", str(1937332 * 2**20))],
)
def test_quantities(text: str, value: str) -> None:
    assert str(quantity(text).normalize()) == str(quantity(value).normalize())
