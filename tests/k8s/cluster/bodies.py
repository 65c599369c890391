"""Objects of the tests of the API server, where they live, and what an answer says."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import httpx2

from .server import Server

JOBS = "/apis/batch/v1/namespaces/lab/jobs"
JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/lab/jobsets"
PODS = "/api/v1/namespaces/lab/pods"
MAPS = "/api/v1/namespaces/lab/configmaps"
APPLY = {"Content-Type": "application/apply-patch+yaml"}


def template(image: str = "trainer:1") -> dict[str, Any]:
    return {"spec": {"restartPolicy": "Never", "containers": [{"name": "trainer", "image": image}]}}


def job(name: str = "train", **spec: Any) -> dict[str, Any]:
    body = {"template": template(), "completions": 1, "parallelism": 1} | spec
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "labels": {"run": "a"}}, "spec": body}


def jobset(image: str = "trainer:1", suspend: bool = False) -> dict[str, Any]:
    replicated = [{"name": "trainer", "replicas": 1, "template": {"spec": {"template": template(image)}}}]
    spec = {"replicatedJobs": replicated, "suspend": suspend, "failurePolicy": {"maxRestarts": 3}}
    api_version = "jobset.x-k8s.io/v1alpha2"
    return {"apiVersion": api_version, "kind": "JobSet", "metadata": {"name": "train"}, "spec": spec}


def config(name: str = "notes", **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def pod(server: Server, name: str = "rank-0", phase: str = "Running", **metadata: Any) -> dict[str, Any]:
    """A pod on a node; ready when it runs."""
    spec = {"nodeName": "node-0", "terminationGracePeriodSeconds": 30, "containers": template()["spec"]["containers"]}
    server.storage.create("Pod", "lab", {"metadata": {"name": name, **metadata}, "spec": spec})
    ready = {"type": "Ready", "status": "True" if phase == "Running" else "False"}
    return server.storage.merge("Pod", "lab", name, {"status": {"phase": phase, "conditions": [ready]}}, "status")


def applied(
    http: httpx2.Client, path: str, body: dict[str, Any], manager: str = "ours", **query: str
) -> httpx2.Response:
    name = body["metadata"]["name"]
    return http.patch(
        f"{path}/{name}", params={"fieldManager": manager, **query}, content=json.dumps(body), headers=APPLY
    )


def reason(response: httpx2.Response) -> tuple[int, str]:
    """Code and reason of a refusal."""
    body = response.json()
    assert body["kind"] == "Status" and body["code"] == response.status_code
    return response.status_code, body.get("reason", "")


def until(condition: Callable[[], object]) -> None:
    """Wait until it holds, for a minute."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)
