"""A person's driver in place of a kubelet: pods are bound, run, finished and evicted by name, nothing really runs.

A client of the API alone, so that the same test works on our server and on a real one that has no kubelet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import httpx2

from .api import STRATEGIC, Api
from .kinds import Object
from .objects import ended, now, place

T = TypeVar("T")
LOOK_S = 0.02
POOL = "tests.example.com/pool"
"""The label of a test's nodes: what its pods select, so that none of a cluster's other nodes takes them."""


@dataclass
class PodDriver:
    api: Api
    home: str = "node-0"
    """The node that pods are bound to which no scheduler has bound."""
    pool: str = ""
    """Of the nodes that it makes."""
    patience_s: float = 120.0
    """How long `wait_until` waits: only what hangs should fail, however slow the machine."""

    def wait_until(self, condition: Callable[[], T], what: str = "") -> T:
        """The first true value of `condition`. Raises AssertionError when it stays false."""
        until = time.monotonic() + self.patience_s
        while not (result := condition()):
            assert time.monotonic() < until, f"Waited {self.patience_s:.0f} s in vain for {what or condition}."
            time.sleep(LOOK_S)
        return result

    def pods(self, namespace: str, labels: str = "") -> list[Object]:
        """Those that exist, by name."""
        return sorted(self.api.list("Pod", namespace, labels)[0], key=lambda p: place(p)[1])

    def wait_for_pods(self, number: int, namespace: str, labels: str = "") -> list[Object]:
        """That many that have not ended and are not going."""

        def there() -> list[Object]:
            matches = [
                p for p in self.pods(namespace, labels) if not ended(p) and "deletionTimestamp" not in p["metadata"]
            ]
            return matches if len(matches) == number else []

        return self.wait_until(there, f"{number} pods of {labels or namespace}")

    def wait_for(self, kind: str, namespace: str, name: str, type_: str, status: str = "True") -> Object:
        """The condition of that type, once it has that status."""

        def there() -> Object:
            conditions = ((self.api.find(kind, namespace, name) or {}).get("status") or {}).get("conditions") or []
            return next((c for c in conditions if (c["type"], c["status"]) == (type_, status)), {})

        return self.wait_until(there, f"{type_}={status} of {kind} {namespace}/{name}")

    def wait_gone(self, kind: str, namespace: str, name: str) -> None:
        self.wait_until(lambda: self.api.find(kind, namespace, name) is None, f"the end of {kind} {namespace}/{name}")

    def node(self, name: str, allocatable: Mapping[str, str], labels: Mapping[str, str] | None = None,
             taints: list[Object] | None = None) -> Object:  # fmt: skip
        """A machine that joins the cluster, ready."""
        metadata = {"name": name, "labels": {"kubernetes.io/hostname": name} | dict(labels or {})}
        metadata["labels"] |= {POOL: self.pool} if self.pool else {}
        self.api.create({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {"taints": taints or []}})
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "kubelet is posting ready status",
        }
        ready |= {"lastHeartbeatTime": now(), "lastTransitionTime": now()}
        room = {"pods": "110"} | dict(allocatable)
        status = {"capacity": room, "allocatable": room, "conditions": [ready]}
        result = self.api.patch("Node", "", name, {"status": status}, "status")
        assert result
        # A real API server taints a new node as not ready, and here nobody would ever take that from it.
        self.api.patch("Node", "", name, {"spec": {"taints": taints or []}})
        return result

    def bind(self, pod: Object, node: str = "") -> None:
        """What a scheduler does; nothing where one has done it."""
        result = self.api.find("Pod", *place(pod))
        if result and not result["spec"].get("nodeName"):
            with suppress(httpx2.HTTPStatusError):  # 409: the scheduler was faster
                self.api.bind(*place(pod), node or self.home)

    def run(self, pod: Object, node: str = "") -> None:
        """Bound, running and ready."""
        self.bind(pod, node)
        self._status(pod, "Running", {"running": {"startedAt": now()}})

    def finish(self, pod: Object, code: int, reason: str = "") -> None:
        """The container ends with this code; `reason` such as OOMKilled."""
        reason = reason or ("Error" if code else "Completed")
        end = {"exitCode": code, "reason": reason, "startedAt": now(), "finishedAt": now()}
        self._status(pod, "Failed" if code else "Succeeded", {"terminated": end})

    def evict(self, pod: Object, code: int = 143) -> int:
        """The eviction, and where it is granted the kubelet's part: the container ends with `code`, the pod goes.
        Returns the code of the answer: 201, or 429 where a budget forbids it."""
        answer = self.api.evict(*place(pod))
        if answer == 201:
            self.finish(pod, code)
            self.api.delete("Pod", *place(pod), grace_s=0, uid=pod["metadata"]["uid"])
        return answer

    def end(self, pod: Object, code: int = 143) -> None:
        """The kubelet's part for a pod that somebody deleted."""
        if self.api.find("Pod", *place(pod)):
            if not ended(pod):
                self.finish(pod, code)
            self.api.delete("Pod", *place(pod), grace_s=0, uid=pod["metadata"]["uid"])

    def waiting(self, pod: Object, reason: str, message: str) -> None:
        """Bound, but its container can't start: ImagePullBackOff, CreateContainerConfigError."""
        self.bind(pod)
        self._status(pod, "Pending", {"waiting": {"reason": reason, "message": message}})

    def unschedulable(self, pod: Object, message: str) -> None:
        """What a scheduler says that finds no node."""
        by_name = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        by_name |= {"lastTransitionTime": now()}
        self.api.patch("Pod", *place(pod), {"status": {"conditions": [by_name]}}, "status", STRATEGIC)

    def _status(self, pod: Object, phase: str, state: Object) -> None:
        running = phase == "Running"
        container = pod["spec"]["containers"][0]
        row = {"name": container["name"], "image": container.get("image", ""), "imageID": "", "restartCount": 0}
        row |= {"state": state, "ready": running, "started": running}
        ready = [{"type": t, "status": str(running), "lastTransitionTime": now()} for t in ("Ready", "ContainersReady")]
        # Conditions are merged by type: a DisruptionTarget stays.
        status = {"phase": phase, "conditions": ready, "containerStatuses": [row], "podIP": "10.0.0.1"}
        self.api.patch("Pod", *place(pod), {"status": status}, "status", STRATEGIC)
