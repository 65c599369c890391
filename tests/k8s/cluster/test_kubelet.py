"""The tests' kubelet: what is bound to it really runs, is told of as a kubelet tells it, and outlives no test."""

from __future__ import annotations

import signal
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.processes import is_alive

from .api import Api
from .controllers import controllers
from .gangs import jobset, pod_template
from .kinds import Object
from .kubelet import Kubelet
from .objects import condition, labels, notes, phase, place
from .pod_driver import PodDriver
from .server import Server, api_server

NS = "default"
ON_SIGTERM = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(int(sys.argv[1])))
print("up", flush=True)
time.sleep(600)
"""
RENDEZVOUS = """
import os, socket, sys, time
host, port = sys.argv[1].split(":")
if os.environ["RANK"] == "0":
    with socket.create_server((host, int(port))) as server:
        server.accept()[0].sendall(b"hello from 0")
else:
    for _ in range(6000):
        try:
            with socket.create_connection((host, int(port))) as peer:
                print(peer.recv(99).decode(), port, flush=True)
                break
        except ConnectionRefusedError:
            time.sleep(0.02)
if os.environ["RESTART"] == "0":
    time.sleep(600)
"""


class Here:
    """One cluster with a kubelet."""

    def __init__(self, server: Server, kubelet: Kubelet) -> None:
        self.server, self.kubelet = server, kubelet
        self.driver = PodDriver(Api(server.url, server.token))

    def pod(self, name: str, *argv: str, grace_s: int = 5, node: str = "node-0", **container: Any) -> Object:
        """A pod that is bound, of this command."""
        template = pod_template(grace_s, nodeName=node, container={"command": list(argv)} | container)
        metadata = {"name": name, "namespace": NS, "labels": {"a": "b"}}
        return self.driver.api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata} | template)

    def at(self, pod: Object) -> Object:
        return self.driver.api.find("Pod", *place(pod)) or {"status": {"phase": "gone"}, "metadata": {}}

    def until(self, pod: Object, *phases: str) -> Object:
        self.driver.wait_until(lambda: phase(self.at(pod)) in phases, f"{phases} of {place(pod)}")
        return self.at(pod)

    def log(self, pod: Object, **query: str) -> str:
        path = f"/api/v1/namespaces/{place(pod)[0]}/pods/{place(pod)[1]}/log"
        headers = {"Authorization": f"Bearer {self.server.token}"}
        return httpx2.get(self.server.url + path, params=query, headers=headers, verify=False).text

    def up(self, pod: Object) -> Object:
        """Running, and past its first line."""
        result = self.until(pod, "Running")
        self.driver.wait_until(lambda: "up" in self.log(pod), "the first line")
        return result


@contextmanager
def cluster(folder: Path, **options: Any) -> Generator[Here]:
    # The kubelet has a door of its own: what a test counts or breaks at the server is the client's.
    with (
        api_server() as server,
        api_server(server.storage) as door,
        controllers(server.storage),
        Kubelet(Api(door.url, door.token), folder, **options) as kubelet,
    ):
        server.logs = kubelet.logs
        yield Here(server, kubelet)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    with cluster(tmp_path) as started:
        yield started


def terminated(pod: Object) -> Object:
    return pod["status"]["containerStatuses"][0]["state"]["terminated"]


@pytest.mark.parametrize(("code", "ends", "reason"), [(0, "Succeeded", "Completed"), (3, "Failed", "Error")])
def test_a_pod_ends_as_its_process_does(here: Here, code: int, ends: str, reason: str) -> None:
    pod = here.pod("p", "python", "-c", f"print('one'); print('two'); raise SystemExit({code})")
    after = here.until(pod, "Succeeded", "Failed")
    assert (phase(after), terminated(after)["exitCode"], terminated(after)["reason"]) == (ends, code, reason)
    assert here.log(pod) == "one\ntwo\n"
    stamp, _, text = here.log(pod, timestamps="true", tailLines="1").partition(" ")
    assert text == "two\n" and len(stamp.partition(".")[2]) == len("123456789Z")


def test_a_running_pod_is_ready_and_a_killed_one_is_told(here: Here) -> None:
    pods = [here.pod(f"p{i}", "python", "-c", ON_SIGTERM, "143") for i in range(2)]
    for pod in pods:
        assert condition(here.up(pod), "Ready")
    here.kubelet.kill(NS, "p0")
    here.kubelet.kill(NS, "p1", oom=True)
    ends = [terminated(here.until(pod, "Failed")) for pod in pods]
    assert [(e["exitCode"], e["reason"]) for e in ends] == [(137, "Error"), (137, "OOMKilled")]


@pytest.mark.parametrize(("code", "ends"), [(143, "Failed"), (0, "Succeeded")])
def test_eviction_is_a_sigterm_whose_end_is_on_record(here: Here, code: int, ends: str) -> None:
    pod = here.pod("p", "python", "-c", ON_SIGTERM, str(code))
    here.up(pod)
    since = here.server.storage.list("Pod")[1]
    assert here.driver.api.evict(NS, "p") == 201
    here.until(pod, "gone")
    story = here.server.storage.watch("Pod", NS, since)
    seen = [next(story) for _ in range(3)]
    last = next(o for _, o in reversed(seen) if o.get("status", {}).get("phase") == ends)
    assert terminated(last)["exitCode"] == code and condition(last, "DisruptionTarget")


@pytest.mark.slow
def test_a_pod_that_ignores_sigterm_is_killed_after_its_grace(here: Here) -> None:
    program = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    )
    pod = here.pod("deaf", "python", "-c", program, grace_s=1)
    here.up(pod)
    pid = here.kubelet.running()[NS, "deaf"]
    here.driver.api.delete("Pod", NS, "deaf")
    here.until(pod, "gone")
    assert not is_alive(pid)


def test_nothing_outlives_its_pod_or_the_test(tmp_path: Path) -> None:
    program = "import subprocess, sys, time; p = subprocess.Popen(['sleep', '600']); print('up', p.pid, flush=True); "
    with cluster(tmp_path) as here:
        ends = here.pod("ends", "python", "-c", program + "time.sleep(0.1)")
        stays = here.pod("stays", "python", "-c", program + "time.sleep(600)")
        here.until(ends, "Succeeded")
        here.up(stays)
        children = [int(here.log(pod).split()[1]) for pod in (ends, stays)]
        # SIGKILL takes effect a moment later.
        here.driver.wait_until(lambda: not is_alive(children[0]), "the end of the child")
        assert is_alive(children[1])
        leader = here.kubelet.running()[NS, "stays"]
    here.driver.wait_until(lambda: not is_alive(children[1]) and not is_alive(leader))


@pytest.mark.parametrize(
    ("container", "state", "reason"),
    [
        ({"command": ["no-such-program"]}, "terminated", "StartError"),
        ({"command": []}, "waiting", "CreateContainerConfigError"),
        ({"image": "gone"}, "waiting", "ImagePullBackOff"),
    ],
)
def test_container_that_cannot_start_says_why(tmp_path: Path, container: Any, state: str, reason: str) -> None:
    def waiting(pod: Object) -> tuple[str, str] | None:
        return ("ImagePullBackOff", "no") if pod["spec"]["containers"][0]["image"] == "gone" else None

    with cluster(tmp_path, waiting=waiting) as here:
        pod = here.pod("p", *container.get("command", ["true"]), image=container.get("image", "here"))

        def said() -> str:
            rows = here.at(pod)["status"].get("containerStatuses") or [{"state": {}}]
            return rows[0]["state"].get(state, {}).get("reason", "")

        here.driver.wait_until(lambda: said() == reason, reason)
        here.driver.api.delete("Pod", NS, "p")
        here.until(pod, "gone")


def test_evicted_gang_restarts_whole_under_a_new_port(here: Here) -> None:
    env = [{"name": "RANK", "valueFrom": field("annotations", "batch.kubernetes.io/job-completion-index")}]
    env += [{"name": "RESTART", "valueFrom": field("labels", "jobset.sigs.k8s.io/restart-attempt")}]
    container = {"command": ["python", "-c", RENDEZVOUS, "gang-trainer-0-0.gang:29500"], "env": env}
    here.driver.api.create(jobset("gang", NS, template=pod_template(container=container)))
    lines = [met(here, 0)]
    rank_0 = next(p for p in here.driver.pods(NS) if notes(p)["batch.kubernetes.io/job-completion-index"] == "0")
    here.driver.api.evict(*place(rank_0))
    lines.append(met(here, 1))
    here.driver.wait_for("JobSet", NS, "gang", "Completed")
    assert lines[0] != lines[1]
    restarts = (here.driver.api.find("JobSet", NS, "gang") or {})["status"]
    assert (restarts["restarts"], restarts.get("restartsCountTowardsMax", 0)) == (1, 0)


def field(of: str, key: str) -> Object:
    return {"fieldRef": {"fieldPath": f"metadata.{of}['{key}']"}}


def met(here: Here, restart: int) -> str:
    """What rank 1 of that life of the gang heard, and on which port."""
    here.driver.wait_for_pods(2, NS, f"jobset.sigs.k8s.io/restart-attempt={restart}") if restart == 0 else None

    def heard() -> str:
        for pod in here.driver.pods(NS, f"jobset.sigs.k8s.io/restart-attempt={restart}"):
            if labels(pod)["batch.kubernetes.io/job-completion-index"] == "1" and "hello" in here.log(pod):
                return here.log(pod)
        return ""

    return here.driver.wait_until(heard, "the rendezvous")


@pytest.mark.slow
def test_spot_interruption_evicts_and_removes_the_node(here: Here) -> None:
    for i in range(2):
        here.driver.node(f"spot-{i}", {"cpu": "8"})
    polite = here.pod("polite", "python", "-c", ON_SIGTERM, "143", node="spot-0")
    deaf = here.pod(
        "deaf", "sh", "-c", "trap '' TERM; echo up; while true; do sleep 0.1; done", node="spot-0", grace_s=30
    )
    other = here.pod("other", "python", "-c", ON_SIGTERM, "143", node="spot-1")
    for pod in (polite, deaf, other):
        here.up(pod)
    pids = here.kubelet.running()
    began = time.monotonic()
    here.kubelet.interrupt("spot-0", deadline_s=1)
    assert time.monotonic() - began >= 1
    assert here.driver.api.find("Node", "", "spot-0") is None
    here.driver.wait_until(lambda: not is_alive(pids[NS, "polite"]) and not is_alive(pids[NS, "deaf"]))
    here.until(deaf, "gone")  # the collector of pods of nodes that are no more
    assert phase(here.at(other)) == "Running" and is_alive(pids[NS, "other"])


def test_kubelet_reports_what_ended_while_the_server_was_away(tmp_path: Path) -> None:
    with (
        api_server() as server,
        controllers(server.storage),
        Kubelet(Api(server.url, server.token), tmp_path) as kubelet,
    ):
        server.logs = kubelet.logs
        here = Here(server, kubelet)
        pod = here.pod("p", "python", "-c", ON_SIGTERM, "7")
        here.up(pod)
        pid = kubelet.running()[NS, "p"]
        with server.away():
            kubelet.kill(NS, "p", signal.SIGTERM)
            here.driver.wait_until(lambda: not is_alive(pid))
        assert terminated(here.until(pod, "Failed"))["exitCode"] == 7


def test_pods_of_others_are_left_alone(tmp_path: Path) -> None:
    with cluster(tmp_path, nodes=("mine",), selector="a=b") as here:
        theirs = here.pod("theirs", "true", node="yours")
        mine = here.pod("mine", "true", node="mine")
        here.until(mine, "Succeeded")
        assert phase(here.at(theirs)) == "Pending"
