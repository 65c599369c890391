"""A pod's deletion, its log, its eviction within budgets, its binding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest

from .bodies import PODS, pod, reason
from .server import Server


def test_a_running_pod_has_its_grace_period(http: httpx2.Client, server: Server) -> None:
    pod(server)
    going = http.delete(f"{PODS}/rank-0").json()["metadata"]
    assert going["deletionGracePeriodSeconds"] == 30 and going["deletionTimestamp"] > going["creationTimestamp"]
    assert http.get(f"{PODS}/rank-0").json()["metadata"]["deletionTimestamp"] == going["deletionTimestamp"]
    http.request("DELETE", f"{PODS}/rank-0", json={"gracePeriodSeconds": 0})
    assert http.get(f"{PODS}/rank-0").status_code == 404
    pod(server, "ended", phase="Failed")
    http.delete(f"{PODS}/ended")
    assert http.get(f"{PODS}/ended").status_code == 404
    server.storage.create("Pod", "lab", {"metadata": {"name": "unbound"}, "spec": {}})
    http.delete(f"{PODS}/unbound")
    assert http.get(f"{PODS}/unbound").status_code == 404


LINES = [f"2026-01-01T00:00:0{n}.00000000{n}Z step {n}" for n in range(5)]


def test_a_log_by_its_parameters(http: httpx2.Client, server: Server, tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("\n".join(LINES) + "\n")
    server.logs = lambda namespace, name: file if name == "rank-0" else None

    def lines(**query: Any) -> list[str]:
        return http.get(f"{PODS}/rank-0/log", params=query).text.splitlines()

    assert reason(http.get(f"{PODS}/rank-0/log")) == (404, "NotFound")
    pod(server, phase="Pending")
    waiting = http.get(f"{PODS}/rank-0/log")
    assert (
        reason(waiting) == (400, "BadRequest") and "is waiting to start: ContainerCreating" in waiting.json()["message"]
    )
    server.storage.merge("Pod", "lab", "rank-0", {"status": {"phase": "Running"}}, "status")
    assert lines() == [f"step {n}" for n in range(5)]
    assert lines(timestamps=True) == LINES
    assert lines(tailLines=2) == ["step 3", "step 4"] and lines(tailLines=0) == []
    assert lines(sinceTime="2026-01-01T00:00:03Z") == ["step 3", "step 4"]
    assert lines(sinceTime="2026-01-01T00:00:03.000004Z", timestamps=True) == LINES[4:]
    assert lines(sinceSeconds=60) == []
    assert lines(limitBytes=9) == ["step 0", "st"]
    assert reason(http.get(f"{PODS}/rank-0/log", params={"container": "sidecar"})) == (400, "BadRequest")
    assert reason(http.get(f"{PODS}/rank-0/log", params={"previous": True})) == (400, "BadRequest")
    pod(server, "rank-1")
    assert reason(http.get(f"{PODS}/rank-1/log")) == (500, "InternalError")  # no kubelet there


def test_a_followed_log_ends_with_its_pod(http: httpx2.Client, server: Server, tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("")
    server.logs = lambda namespace, name: file
    pod(server)
    with http.stream("GET", f"{PODS}/rank-0/log", params={"follow": "true"}) as response, file.open("a") as out:
        lines = response.iter_lines()
        for line in LINES:
            print(line, file=out, flush=True)
            assert next(lines) == line.split(" ", 1)[1]
        print("2026-01-01T00:01:00Z bye", file=out, flush=True)
        server.storage.merge("Pod", "lab", "rank-0", {"status": {"phase": "Succeeded"}}, "status")
        assert list(lines) == ["bye"]


def evict(http: httpx2.Client, name: str) -> httpx2.Response:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": "lab"}}
    return http.post(f"{PODS}/{name}/eviction", json=body)


def test_an_eviction_marks_the_pod_and_leaves_it_its_grace(http: httpx2.Client, server: Server) -> None:
    pod(server)
    assert evict(http, "rank-0").status_code == 201
    evicted = http.get(f"{PODS}/rank-0").json()
    [condition] = [c for c in evicted["status"]["conditions"] if c["type"] == "DisruptionTarget"]
    assert (condition["status"], condition["reason"]) == ("True", "EvictionByEvictionAPI")
    assert evicted["metadata"]["deletionGracePeriodSeconds"] == 30
    assert reason(evict(http, "nobody")) == (404, "NotFound")


@pytest.mark.parametrize(
    "budget, allowed",
    [
        ({"maxUnavailable": 0}, 0),
        ({"maxUnavailable": 1}, 1),
        ({"minAvailable": 2}, 1),
        ({"minAvailable": "100%"}, 0),
        ({"minAvailable": "34%"}, 1),
        ({"maxUnavailable": 0, "selector": {"matchLabels": {"app": "other"}}}, 3),
        ({"maxUnavailable": 0, "selector": {}}, 0),
        ({"maxUnavailable": 0, "selector": None}, 3),
    ],
)
def test_a_budget_forbids_evictions(http: httpx2.Client, server: Server, budget: dict[str, Any], allowed: int) -> None:
    for rank in range(3):
        pod(server, f"rank-{rank}", labels={"app": "trainer"})
    spec = {"selector": {"matchLabels": {"app": "trainer"}}} | budget
    server.storage.create("PodDisruptionBudget", "lab", {"metadata": {"name": "trainers"}, "spec": spec})
    answers = [evict(http, f"rank-{rank}") for rank in range(3)]
    assert [a.status_code for a in answers] == [201] * allowed + [429] * (3 - allowed)
    for refused in answers[allowed:]:
        assert reason(refused) == (429, "TooManyRequests")
        assert refused.json()["details"]["causes"][0]["reason"] == "DisruptionBudget"


def test_a_pod_is_bound_once(http: httpx2.Client, server: Server) -> None:
    server.storage.create("Pod", "lab", {"metadata": {"name": "p"}, "spec": {}})
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}}
    assert http.post(f"{PODS}/p/binding", json=body).status_code == 201
    assert http.get(f"{PODS}/p").json()["spec"]["nodeName"] == "n"
    assert reason(http.post(f"{PODS}/p/binding", json=body)) == (409, "Conflict")
