"""Who gets nodes and when: the scheduler starts half gangs, Kueue admits whole ones one after another."""

from __future__ import annotations

from typing import Any

import pytest

from . import scheduler
from .controllers import settle
from .gangs import (
    cluster,
    gpus,
    job,
    jobset,
    ours,
    placed,
    pod_template,
    requires,
    running,
    selecting,
    status,
    unschedulable,
)
from .kinds import Object
from .objects import place, quantity
from .pod_driver import PodDriver
from .podcalls import bind
from .storage import Storage

ANY = [{"operator": "Exists"}]


def test_the_scheduler_starts_part_of_a_gang(driver: PodDriver, ns: str) -> None:
    taint = {"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}
    for i in range(3):
        driver.node(f"{ns}-gpu-{i}", {"cpu": "8", "nvidia.com/gpu": "8"}, {"pool": "training"}, [taint])
    driver.node(f"{ns}-small", {"cpu": "8"}, {"pool": "training"}, [])
    tolerates = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    template = pod_template(container=gpus(8), tolerations=tolerates, nodeSelector={"pool": "training"})
    driver.api.create(job("half", ns, 4, template=template))
    driver.wait_until(lambda: sum("nodeName" in p["spec"] for p in driver.pods(ns)) == 3)
    [left] = driver.wait_until(lambda: [p for p in driver.pods(ns) if unschedulable(p)])
    assert "4 Insufficient nvidia.com/gpu" in unschedulable(left)  # of other nodes it says other things
    reasons = lambda: {event["reason"] for event in driver.api.list("Event", ns)[0]}  # noqa: E731
    driver.wait_until(lambda: "FailedScheduling" in reasons(), "its event")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({}, "1 node(s) had untolerated taint {gpu: yes}"),
        ({"tolerations": [{"key": "tpu", "operator": "Exists"}]}, "1 node(s) had untolerated taint {gpu: yes}"),
        (
            {"tolerations": [{"operator": "Exists"}], "nodeSelector": {"a": "b"}},
            " node(s) didn't match Pod's node affinity",
        ),
        ({"tolerations": [{"operator": "Exists"}], "container": gpus(1)}, " Insufficient nvidia.com/gpu"),
    ],
)
def test_the_scheduler_says_why_a_pod_waits(driver: PodDriver, ns: str, spec: Any, message: str) -> None:
    driver.node(f"{ns}-only", {"cpu": "1"}, {}, [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}])
    driver.api.create(job("waits", ns, 1, template=pod_template(**spec)))
    [pod] = driver.wait_until(lambda: [p for p in driver.pods(ns) if unschedulable(p)])
    assert message in unschedulable(pod)


def test_scheduler_leaves_a_pod_that_is_bound_already(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage()
    storage.create("Pod", "default", {"metadata": {"name": "p"}, "spec": {"containers": []}})

    def meanwhile(pod: Object, *_: object) -> tuple[str, str]:
        bind(storage, *place(pod), {"target": {"name": "theirs"}})
        storage.merge("Pod", *place(pod), {"status": {"phase": "Running"}}, "status")
        return "ours", ""

    monkeypatch.setattr(scheduler, "_choose", meanwhile)
    settle(storage, [scheduler.reconcile])
    result = storage.get("Pod", "default", "p")
    assert (result["spec"]["nodeName"], result["status"]["phase"]) == ("theirs", "Running")


def test_pods_of_a_lost_node_are_disrupted(driver: PodDriver, ns: str) -> None:
    for i in range(2):
        driver.node(f"{ns}-{i}", {"cpu": "8", "nvidia.com/gpu": "8"})
    driver.api.create(jobset("spot", ns, 2, template=pod_template(container=gpus(8))))
    pods = placed(driver, ns, 2)
    lost = next(p for p in driver.pods(ns) if p["spec"]["nodeName"] == f"{ns}-1")
    driver.api.delete("Node", "", f"{ns}-1")
    driver.wait_gone("Pod", *place(lost))
    driver.end(next(p for p in pods if place(p) != place(lost)))
    driver.wait_until(lambda: status(driver, "JobSet", ns, "spot").get("restarts") == 1)


def kueue(driver: PodDriver, ns: str, quota: int = 24) -> None:
    """A queue of one flavour, both called as the namespace."""
    requires(driver, "ClusterQueue")
    api = "kueue.x-k8s.io/v1beta2"
    flavor = {"nodeLabels": {"karpenter.sh/capacity-type": "spot"}}
    driver.api.create({"apiVersion": api, "kind": "ResourceFlavor", "metadata": {"name": ns}, "spec": flavor})
    offer = {"name": ns, "resources": [{"name": "nvidia.com/gpu", "nominalQuota": quota}]}
    spec = {"namespaceSelector": {}, "resourceGroups": [{"coveredResources": ["nvidia.com/gpu"], "flavors": [offer]}]}
    driver.api.create({"apiVersion": api, "kind": "ClusterQueue", "metadata": {"name": ns}, "spec": spec})
    queue = {"apiVersion": api, "kind": "LocalQueue", "metadata": {"name": "training", "namespace": ns}}
    driver.api.create(queue | {"spec": {"clusterQueue": ns}})


def queued(name: str, ns: str, pods: int = 3) -> Object:
    body = jobset(name, ns, pods, template=pod_template(container=gpus(8)))
    body["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "training"}
    return body


def workload(driver: PodDriver, ns: str, of: str, type_: str) -> Object:
    for result in driver.api.list("Workload", ns)[0]:
        if place(result)[1].startswith(f"jobset-{of}-"):
            conditions = (result.get("status") or {}).get("conditions") or []
            return next((c for c in conditions if c["type"] == type_), {})
    return {}


def test_second_gang_waits_for_the_quota_of_the_first(driver: PodDriver, ns: str) -> None:
    kueue(driver, ns)
    driver.api.create(queued("first", ns))
    first = running(driver, ns, 3)
    assert all(p["spec"]["nodeSelector"]["karpenter.sh/capacity-type"] == "spot" for p in first)
    driver.api.create(queued("second", ns))
    value = driver.wait_until(lambda: workload(driver, ns, "second", "QuotaReserved"))
    problem = f"insufficient unused quota for nvidia.com/gpu in flavor {ns}, 24 more needed"
    assert value["message"] == f"couldn't assign flavors to pod set trainer: {problem}"
    assert (value["status"], len(driver.pods(ns))) == ("False", 3)
    for pod in first:
        driver.finish(pod, 0)
    label = "jobset.sigs.k8s.io/jobset-name=second"
    assert len(driver.wait_for_pods(3, ns, label)) == 3
    assert workload(driver, ns, "first", "Finished")["status"] == "True"
    assert workload(driver, ns, "second", "Admitted")["status"] == "True"


CAPACITY = "karpenter.sh/capacity-type"


def terms(*alternatives: Object) -> Object:
    required = {"nodeSelectorTerms": [{"matchExpressions": [e]} for e in alternatives]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


@pytest.mark.parametrize(
    ("spec", "taken"),
    [
        ({}, True),
        ({"nodeSelector": {CAPACITY: "spot"}}, True),
        ({"nodeSelector": {CAPACITY: "on-demand"}}, False),
        ({"nodeSelector": {"fabric": "efa"}}, True),  # a key of no flavour, or of another one
        (terms({"key": CAPACITY, "operator": "DoesNotExist"}), False),
        (terms({"key": CAPACITY, "operator": "NotIn", "values": ["spot"]}), False),
        (terms({"key": "fabric", "operator": "DoesNotExist"}), True),
        (terms({"key": CAPACITY, "operator": "In", "values": ["on-demand"]}, {"key": "a", "operator": "Exists"}), True),
    ],
)
def test_a_flavour_is_compared_over_its_own_labels(driver: PodDriver, ns: str, spec: Object, taken: bool) -> None:
    kueue(driver, ns)
    body = queued("picky", ns)
    template = selecting(pod_template(container=gpus(8), **spec), ns)
    body["spec"]["replicatedJobs"][0]["template"]["spec"]["template"] = template
    driver.api.create(body)
    value = driver.wait_until(lambda: workload(driver, ns, "picky", "QuotaReserved"))
    assert (value["status"] == "True") == taken, value
    assert taken or value["message"].endswith(f"flavor {ns} doesn't match node affinity")


def test_a_gang_that_asks_for_more_than_there_is_never_comes(driver: PodDriver, ns: str) -> None:
    kueue(driver, ns, quota=16)
    driver.api.create(queued("big", ns))
    value = driver.wait_until(lambda: workload(driver, ns, "big", "QuotaReserved"))
    assert value["message"].endswith("+ current podset request (24) > maximum capacity (16)")
    assert driver.pods(ns) == []


@pytest.mark.slow
@ours  # with waitForPodsReady of half a second
def test_gang_that_is_not_ready_in_time_is_evicted_and_returns() -> None:
    with cluster(pods_ready_timeout_s=0.5, requeue_s=0.1) as driver:
        driver.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kueue"}})
        kueue(driver, "kueue")
        driver.api.create(queued("slow", "kueue"))
        # Whatever they are by now: half a second may be over.
        before = driver.wait_until(lambda: result if len(result := driver.pods("kueue")) == 3 else [])
        evicted = driver.wait_until(lambda: workload(driver, "kueue", "slow", "Evicted"))
        assert evicted["reason"] == "PodsReadyTimeout" and evicted["message"].startswith(
            "Exceeded the PodsReady timeout"
        )
        driver.wait_until(lambda: all("deletionTimestamp" in p["metadata"] for p in driver.pods("kueue")))
        for pod in before:
            driver.end(pod)
        after = driver.wait_until(lambda: [p for p in driver.pods("kueue") if place(p) not in map(place, before)])
        assert not {p["metadata"]["uid"] for p in after} & {p["metadata"]["uid"] for p in before}


@pytest.mark.parametrize(
    ("text", "value"),
    [("191450m", "191.45"), ("8", "8"), ("1Gi", str(2**30)), ("2k", "2000"), ("1937332Mi", str(1937332 * 2**20))],
)
def test_quantities(text: str, value: str) -> None:
    assert str(quantity(text).normalize()) == str(quantity(value).normalize())
