"""A kubelet for all nodes at once: what is bound to them runs as child processes, and the API hears of it.

A client of the API alone, so that it serves a real API server too. One container a pod, run once; no probes, no volumes
but projected tokens (the children share this machine's files), no images, no users. Not: pods' own deadlines, restarts,
init containers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Self

import httpx2

from ...ports import LOOPBACK
from .api import STRATEGIC, Api
from .containers import Container, Names, command, projected, with_secrets
from .kinds import Object
from .objects import deleting, ended, now, place

RETRY_S = 0.05
BEAT_S = 10.0
DISRUPTED = {"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}
Waiting = Callable[[Object], tuple[str, str] | None]


@dataclass
class Kubelet:
    api: Api
    folder: Path
    """Of the logs."""
    nodes: Collection[str] = ()
    """Those that are this kubelet's; empty: all."""
    selector: str = ""
    """Labels of the pods that may run here: on a real cluster there are others."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """Beside PATH, HOME, HOSTNAME and what the pod says."""
    waiting: Waiting = lambda pod: None
    """(reason, message) for a pod whose container can't start, such as ImagePullBackOff."""
    _running: dict[str, Container] = field(default_factory=dict[str, Container])
    _uids: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    _taken: set[str] = field(default_factory=set[str])
    _over: set[str] = field(default_factory=set[str])
    """Uids of pods that nothing runs or will run of, and whose status says so."""
    _lost: set[str] = field(default_factory=set[str])
    _adrift: list[Container] = field(default_factory=list[Container])
    """On machines that are cut off."""
    _names: Names = field(default_factory=Names)
    _stop: threading.Event = field(default_factory=threading.Event)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _pods: list[threading.Thread] = field(default_factory=list[threading.Thread])

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        threading.Thread(target=self._watch, daemon=True, name="kubelet").start()
        return self

    def __exit__(self, *_: object) -> None:
        """Everything that runs is killed; nobody is told."""
        self._stop.set()
        with self._lock:
            running = [*self._running.values(), *self._adrift]
        for container in running:
            container.signal(9)
        for thread in self._pods:
            thread.join(timeout=10)
        self._names.free()

    def logs(self, namespace: str, name: str) -> Path | None:
        """The server's hook."""
        uid = self._uids.get((namespace, name))
        file = self.folder / f"{namespace}_{name}_{uid}.log"
        return file if uid and file.exists() else None

    def running(self) -> dict[tuple[str, str], int]:
        """Process ids by namespace and name."""
        with self._lock:
            alive = {uid: c.pid for uid, c in self._running.items() if not c.exited.is_set()}
            return {at: alive[uid] for at, uid in self._uids.items() if uid in alive}

    def kill(self, namespace: str, name: str, signum: int = 9, oom: bool = False) -> None:
        """A crash from outside; `oom`: by the kernel, for memory."""
        container = self._running[self._uids[namespace, name]]
        container.oom = oom
        container.signal(9 if oom else signum)

    def interrupt(self, node: str, deadline_s: float) -> None:
        """A spot interruption: the node is tainted and its pods are evicted; at the deadline the machine is gone.
        Returns when it is."""
        until = time.monotonic() + deadline_s
        if result := self.api.find("Node", "", node):
            taints = [*(result["spec"].get("taints") or []), DISRUPTED]
            self.api.patch("Node", "", node, {"spec": {"taints": taints}})
        asked: set[str] = set()
        while (left := self._on(node)) and time.monotonic() < until:
            for pod in left:
                # 429: a budget forbids it now; asked again until the machine goes.
                if pod["metadata"]["uid"] not in asked and self.api.evict(*place(pod)) != 429:
                    asked.add(pod["metadata"]["uid"])
            self._stop.wait(RETRY_S)
        self.lose(node)

    def lose(self, node: str) -> None:
        """The machine is gone: its processes end and no kubelet tells; the cloud's controller drops the Node."""
        with self._lock:
            self._lost.add(node)
        for pod in self._on(node):
            if container := self._running.get(pod["metadata"]["uid"]):
                container.signal(9)
        self.api.delete("Node", "", node)

    def cut_off(self, node: str) -> None:
        """The network is gone: what runs on the machine goes on, and neither side hears of the other."""
        with self._lock:
            self._lost.add(node)
            for pod in self._on(node):
                if container := self._running.pop(pod["metadata"]["uid"], None):
                    self._adrift.append(container)

    def _on(self, node: str) -> list[Object]:
        pods = self.api.list("Pod", labels=self.selector)[0]
        return [p for p in pods if p["spec"].get("nodeName") == node and not ended(p)]

    def _watch(self) -> None:
        beat = 0.0
        while not self._stop.is_set():
            try:
                if self.nodes and time.monotonic() - beat > BEAT_S:
                    self._beat()
                    beat = time.monotonic()
                pods, version = self.api.list("Pod", labels=self.selector)
                self._gone({p["metadata"]["uid"] for p in pods})
                for pod in pods:
                    self._see(pod)
                for type_, pod in self.api.watch("Pod", version, self.selector):
                    if type_ == "ERROR" or self._stop.is_set():
                        break
                    if type_ == "DELETED":
                        self._forget(pod["metadata"]["uid"])
                    elif type_ != "BOOKMARK":
                        self._see(pod)
            except httpx2.HTTPError:  # a server that is away or slow: the list after it tells everything
                self._stop.wait(RETRY_S)

    def _beat(self) -> None:
        for node in set(self.nodes) - self._lost:
            ready = {
                "type": "Ready",
                "status": "True",
                "reason": "KubeletReady",
                "message": "kubelet is posting ready status",
            }
            patch = {"status": {"conditions": [ready | {"lastHeartbeatTime": now()}]}}
            self.api.patch("Node", "", node, patch, "status", STRATEGIC)

    def _gone(self, present: set[str]) -> None:
        for uid in set(self._running) - present:
            self._forget(uid)

    def _forget(self, uid: str) -> None:
        """Deleted by force: what still runs of it is killed at once."""
        if container := self._running.get(uid):
            container.signal(9)

    def _see(self, pod: Object) -> None:
        node, uid = pod["spec"].get("nodeName"), pod["metadata"]["uid"]
        with self._lock:
            if not node or node in self._lost or (self.nodes and node not in self.nodes):
                return
            container = self._running.get(uid)
            if deleting(pod):
                if container and not container.exited.is_set():
                    container.terminate(pod["metadata"].get("deletionGracePeriodSeconds", 30))
                elif uid not in self._taken or uid in self._over:
                    self._taken.add(uid)
                    self._spawn(self._bury, pod)
            elif uid not in self._taken and not ended(pod):
                self._taken.add(uid)
                self._uids[place(pod)] = uid
                self._spawn(self._run, pod)

    def _spawn(self, target: Callable[[Object], None], pod: Object) -> None:
        thread = threading.Thread(target=target, args=(pod,), daemon=True)
        self._pods.append(thread)
        thread.start()

    def _run(self, pod: Object) -> None:
        """The life of a pod, from its binding to its end."""
        namespace, name = place(pod)
        uid, container = pod["metadata"]["uid"], pod["spec"]["containers"][0]["name"]
        self._live(pod, container)
        self._over.add(uid)
        # Between the last word and this somebody may have deleted it.
        latest = self._until_heard(lambda: self.api.find("Pod", namespace, name))
        if (
            latest
            and deleting(latest)
            and latest["metadata"]["uid"] == uid
            and pod["spec"]["nodeName"] not in self._lost
        ):
            self._bury(latest)

    def _live(self, pod: Object, container: str) -> None:
        namespace, name = place(pod)
        uid = pod["metadata"]["uid"]
        if stuck := self.waiting(pod):
            self._tell(pod, "Pending", container, {"waiting": {"reason": stuck[0], "message": stuck[1]}})
            return
        fresh = self._tell(pod, "Pending", container, {"waiting": {"reason": "ContainerCreating"}})
        if fresh is None or deleting(fresh):
            return
        try:
            opened = with_secrets(pod, partial(self.api.find, "Secret"))
            argv, environment = command(opened, self._names, self.environment, projected(pod, self.folder))
            log = self.folder / f"{namespace}_{name}_{uid}.log"
            log.touch()
            process = Container(argv, environment, log)
        except ValueError as error:
            stuck = ("CreateContainerConfigError", str(error))
            self._tell(pod, "Pending", container, {"waiting": {"reason": stuck[0], "message": stuck[1]}})
            return
        except OSError as error:
            end = {"exitCode": 128, "reason": "StartError", "message": str(error)}
            self._tell(pod, "Failed", container, {"terminated": end | {"startedAt": now(), "finishedAt": now()}})
            return
        with self._lock:
            self._running[uid] = process
        if self._stop.is_set():
            process.signal(9)
        started = now()
        fresh = self._tell(pod, "Running", container, {"running": {"startedAt": started}})
        if fresh is None:
            process.signal(9)
        elif deleting(fresh):
            self._see(fresh)
        code = process.wait()
        if self._stop.is_set() or pod["spec"]["nodeName"] in self._lost:
            return
        reason = "OOMKilled" if process.oom else "Error" if code else "Completed"
        end = {"exitCode": code, "reason": reason, "startedAt": started, "finishedAt": now()}
        self._tell(pod, "Failed" if code else "Succeeded", container, {"terminated": end})

    def _bury(self, pod: Object) -> None:
        """A pod that is deleted and has nothing running: it never ran, or it ended before."""
        if not ended(pod):
            self._tell(pod, "Failed", "", {})
        self._remove(pod)

    def _remove(self, pod: Object) -> None:
        self._until_heard(lambda: self.api.delete("Pod", *place(pod), grace_s=0, uid=pod["metadata"]["uid"]))

    def _tell(self, pod: Object, phase: str, container: str, state: Object) -> Object | None:
        """Write a pod's status and return the pod, or None where it is gone."""
        yes = "True" if phase == "Running" else "False"
        conditions: list[Object] = [{"type": "Initialized", "status": "True"}]
        conditions += [{"type": kind, "status": yes} for kind in ("Ready", "ContainersReady")]
        for one in conditions:
            one["lastTransitionTime"] = now()
            if phase in ("Succeeded", "Failed") and one["status"] == "False":
                one["reason"] = "PodCompleted" if phase == "Succeeded" else "PodFailed"
        status: Object = {
            "phase": phase,
            "conditions": conditions,
            "podIP": LOOPBACK,
            "hostIP": LOOPBACK,
            "startTime": now(),
        }
        if container:
            image = pod["spec"]["containers"][0].get("image", "")
            row = {"name": container, "state": state, "ready": phase == "Running", "restartCount": 0}
            status["containerStatuses"] = [row | {"image": image, "imageID": "", "started": phase == "Running"}]
        # The uid keeps the status of a pod from its successor of the same name.
        patch = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}
        return self._until_heard(lambda: self.api.patch("Pod", *place(pod), patch, "status", STRATEGIC))

    def _until_heard(self, call: Callable[[], Object | None]) -> Object | None:
        """As a kubelet does it: again and again until the server has heard it, or the pod is somebody else's (409)."""
        while not self._stop.is_set():
            try:
                return call()
            except httpx2.HTTPStatusError as error:
                if error.response.status_code in (404, 409, 422):
                    return None
            except httpx2.HTTPError:
                pass  # the server is away
            self._stop.wait(RETRY_S)
        return None
