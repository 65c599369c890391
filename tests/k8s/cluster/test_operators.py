"""Gangs of other operators: Volcano's policies in their order, a RayJob that ends as its entrypoint does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .gangs import gpus, ours, placed, pod_template, requires, running, selecting, status, unschedulable
from .kinds import Object
from .objects import place
from .pod_driver import PodDriver

RESTART = {"event": "PodFailed", "action": "RestartJob"}


def volcano(name: str, ns: str, pods: int = 2, policies: Any = None, **spec: Any) -> Object:
    right = [
        {"exitCode": 64, "action": "AbortJob"},
        RESTART,
        {"event": "PodEvicted", "action": "RestartJob"},
    ]
    task = {"name": "trainer", "replicas": pods, "template": selecting(pod_template(container=gpus(8)), ns)}
    inner = {"minAvailable": pods, "queue": "default", "schedulerName": "volcano", "plugins": {"svc": [], "env": []}}
    inner |= {"policies": right if policies is None else policies, "tasks": [task]} | spec
    metadata = {"name": name, "namespace": ns}
    return {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": metadata, "spec": inner}


def state(driver: PodDriver, ns: str, name: str) -> str:
    return (status(driver, "VolcanoJob", ns, name).get("state") or {}).get("phase", "")


@pytest.fixture
def nodes(driver: PodDriver, ns: str) -> Callable[[int], None]:
    """Makes the node of that number; skips where there is no Volcano."""
    requires(driver, "VolcanoJob")

    def node(number: int) -> None:
        driver.node(f"{ns}-{number}", {"cpu": "8", "nvidia.com/gpu": "8"})

    return node


def test_volcano_places_all_or_none(driver: PodDriver, ns: str, nodes: Callable[[int], None]) -> None:
    nodes(0)
    driver.api.create(volcano("gang", ns))
    driver.wait_until(lambda: [p for p in driver.pods(ns) if "pod group is not ready" in unschedulable(p)])
    assert not [p for p in driver.pods(ns) if "nodeName" in p["spec"]]
    nodes(1)
    pods = placed(driver, ns, 2)
    assert [(place(p)[1], p["spec"]["hostname"], p["spec"]["subdomain"]) for p in pods] == [
        (f"gang-trainer-{i}", f"gang-trainer-{i}", "gang") for i in range(2)
    ]
    driver.wait_until(lambda: state(driver, ns, "gang") == "Running")


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
    driver: PodDriver, ns: str, nodes: Callable[[int], None], code: int, policies: Any, phases: list[str]
) -> None:
    nodes(0)
    nodes(1)
    driver.api.create(volcano("ordered", ns, policies=policies))
    pods = placed(driver, ns, 2)
    driver.wait_until(lambda: state(driver, ns, "ordered") == "Running")
    for pod in pods if code == 0 else pods[:1]:
        driver.finish(pod, code)
    if code:
        driver.wait_until(
            lambda: "deletionTimestamp" in (driver.api.find("Pod", *place(pods[1])) or pods[1])["metadata"]
        )
        driver.end(pods[1])
    driver.wait_until(lambda: state(driver, ns, "ordered") in phases)
    assert status(driver, "VolcanoJob", ns, "ordered")["retryCount"] == (phases[0] == "Pending")


def test_volcano_counts_evictions_as_retries_and_gives_up(
    driver: PodDriver, ns: str, nodes: Callable[[int], None]
) -> None:
    nodes(0)
    driver.api.create(volcano("spent", ns, pods=1, maxRetry=2))
    for retry in range(2):
        driver.wait_until(lambda n=retry: status(driver, "VolcanoJob", ns, "spent").get("retryCount") == n)
        [pod] = placed(driver, ns, 1)
        driver.wait_until(lambda: state(driver, ns, "spent") == "Running")
        driver.evict(pod)
    driver.wait_until(lambda: state(driver, ns, "spent") == "Failed")


@ours  # KubeRay asks the head's dashboard, and nobody plays that
@pytest.mark.parametrize(("code", "deployment", "job_status"), [(0, "Complete", "SUCCEEDED"), (64, "Failed", "FAILED")])
def test_a_rayjob_ends_as_its_entrypoint_does(
    driver: PodDriver, ns: str, code: int, deployment: str, job_status: str
) -> None:
    cluster_spec = {"headGroupSpec": {"rayStartParams": {}, "template": pod_template()}}
    spec = {"entrypoint": "python -m x", "backoffLimit": 0, "rayClusterSpec": cluster_spec}
    metadata = {"name": "ray", "namespace": ns}
    driver.api.create({"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": metadata, "spec": spec})
    running(driver, ns, 1, "ray.io/node-type=head")
    [submitter] = running(driver, ns, 1, "ray.io/node-type=submitter")
    assert submitter["spec"]["containers"][0]["command"] == ["python", "-m", "x"]
    driver.finish(submitter, code)
    driver.wait_until(lambda: status(driver, "RayJob", ns, "ray").get("jobDeploymentStatus") == deployment)
    end = status(driver, "RayJob", ns, "ray")
    assert end["jobStatus"] == job_status
    assert not code or end["message"].startswith("Job entrypoint command failed with exit code 64, last available logs")
