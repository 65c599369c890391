"""Jobs, JobSets and clusters for the tests of the controllers; with KUBECONFIG set, the cluster is that one."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from .api import Api
from .controllers import controllers
from .kinds import KINDS, Object
from .pod_driver import POOL, PodDriver
from .server import api_server

KUBECONFIG = os.environ.get("KUBECONFIG")
ours = pytest.mark.skipif(bool(KUBECONFIG), reason="about the tests' own controllers, or a setting of theirs")
PATIENCE_S = 180
"""On a cluster that KUBECONFIG names: a Job's back-off is 10 s there, a lost node's pods go after 40 s and more."""
TARGET = {"onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}


def exits(*codes: int) -> Object:
    return {"onExitCodes": {"containerName": "trainer", "operator": "In", "values": list(codes)}}


GANG = [{"action": "FailJob"} | TARGET, {"action": "FailJob"} | exits(64, 143)]
RULES = [
    {"name": "never", "action": "FailJobSet", "onJobFailureMessagePatterns": [".*exit code 64.*"]},
    {"name": "again", "action": "RestartJobSetAndIgnoreMaxRestarts", "onJobFailureReasons": ["PodFailurePolicy"]},
]


@contextmanager
def cluster(**options: Any) -> Generator[PodDriver]:
    """The driver in the tests' cluster, or in the one that KUBECONFIG names."""
    if KUBECONFIG:
        yield PodDriver(Api.from_kubeconfig(Path(KUBECONFIG)), patience_s=PATIENCE_S)
        return
    with api_server() as server, controllers(server.storage, **options):
        yield PodDriver(Api(server.url, server.token))


def pod_template(grace_s: int = 5, **spec: Any) -> Object:
    container = {"name": "trainer", "image": "example.com/trainer:1", "command": ["python"]} | spec.pop("container", {})
    return {
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": grace_s, "containers": [container]} | spec
    }


def selecting(template: Object, pool: str) -> Object:
    """A template whose pods go to nodes of that pool alone."""
    spec = template["spec"]
    return template | {"spec": spec | {"nodeSelector": spec.get("nodeSelector", {}) | {POOL: pool}}}


def requires(driver: PodDriver, kind: str) -> None:
    """Skip a test of an operator that the cluster does not have."""
    try:
        driver.api.list(kind)
    except httpx2.HTTPStatusError as error:
        if error.response.status_code != 404:
            raise
        pytest.skip(f"the cluster that KUBECONFIG names serves no {KINDS[kind].api_version} {KINDS[kind].kind}")


def job(name: str, ns: str, pods: int = 3, template: Object | None = None, **spec: Any) -> Object:
    inner = {"completionMode": "Indexed", "completions": pods, "parallelism": pods, "backoffLimit": 0}
    inner |= {"template": selecting(template or pod_template(), ns)} | spec
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": ns}, "spec": inner}


def jobset(name: str, ns: str, pods: int = 2, max_restarts: int = 1, rules: Any = RULES, **spec: Any) -> Object:
    inner = job("", ns, pods, podFailurePolicy={"rules": GANG}, **spec)["spec"]
    replicated = [{"name": "trainer", "replicas": 1, "template": {"spec": inner}}]
    policy = {"maxRestarts": max_restarts, "rules": rules}
    metadata = {"name": name, "namespace": ns}
    body: Object = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata}
    return body | {"spec": {"replicatedJobs": replicated, "failurePolicy": policy}}


def running(driver: PodDriver, ns: str, number: int, label: str = "") -> list[Object]:
    pods = driver.wait_for_pods(number, ns, label)
    for pod in pods:
        driver.run(pod)
    return pods


def placed(driver: PodDriver, ns: str, number: int) -> list[Object]:
    """Those that run where the scheduler wants them: driver that are faster than it bind them to their own node."""
    driver.wait_until(
        lambda: sum("nodeName" in p["spec"] for p in driver.pods(ns)) == number, f"nodes for {number} pods"
    )
    return running(driver, ns, number)


def status(driver: PodDriver, kind: str, ns: str, name: str) -> Object:
    return (driver.api.find(kind, ns, name) or {}).get("status") or {}


def gpus(number: int) -> Object:
    return {"resources": {"limits": {"nvidia.com/gpu": str(number)}}}


def unschedulable(pod: Object) -> str:
    conditions = pod["status"].get("conditions") or []
    return next((c["message"] for c in conditions if c.get("reason") == "Unschedulable"), "")
