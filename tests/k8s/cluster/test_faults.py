"""Watches, and everything that can go wrong between a client and the API server."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from typing import Any

import httpx2
import pytest

from .bodies import JOBS, MAPS, job, reason, until
from .faults import Call, Fault
from .server import Server


class Watch:
    """A watch in a thread of its own: its events as they come."""

    def __init__(self, http: httpx2.Client, path: str, **query: str) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.closed = False
        self._thread = threading.Thread(target=self._read, args=(http, path, query), daemon=True)
        self._thread.start()

    def _read(self, http: httpx2.Client, path: str, query: dict[str, str]) -> None:
        # The end of the test breaks the connection.
        with (
            suppress(httpx2.TransportError),
            http.stream("GET", path, params={"watch": "true", **query}) as response,
        ):
            assert response.status_code == 200
            for line in response.iter_lines():
                event = json.loads(line)
                self.events.append((event["type"], event["object"]))
            self.closed = True

    def ended(self) -> bool:
        """As the server ends a stream, not as a connection breaks."""
        self._thread.join(60)
        return self.closed

    def told(self, count: int) -> list[tuple[str, str]]:
        until(lambda: len(self.events) >= count)
        return [(event, obj["metadata"].get("name", "")) for event, obj in self.events]


def test_a_watch_tells_what_changes_for_its_selector(http: httpx2.Client, server: Server) -> None:
    storage = server.storage
    storage.create("ConfigMap", "lab", {"metadata": {"name": "old", "labels": {"run": "1"}}})
    since = http.get(MAPS).json()["metadata"]["resourceVersion"]
    everything = Watch(http, MAPS)
    ours = Watch(http, MAPS, labelSelector="run=1", resourceVersion=since, allowWatchBookmarks="true")
    until(lambda: server.count("watch") == 2)
    storage.create("ConfigMap", "lab", {"metadata": {"name": "new", "labels": {"run": "1"}}})
    ours.told(1)
    storage.merge("ConfigMap", "lab", "new", {"data": {"a": "1"}})
    ours.told(2)
    storage.create("ConfigMap", "lab", {"metadata": {"name": "other"}})
    assert ours.told(3)[2] == ("BOOKMARK", "")
    storage.merge("ConfigMap", "lab", "new", {"metadata": {"labels": None}})
    assert ours.told(4) == [("ADDED", "new"), ("MODIFIED", "new"), ("BOOKMARK", ""), ("DELETED", "new")]
    storage.delete("ConfigMap", "lab", "new")
    value = everything.told(6)
    assert value[0] == ("ADDED", "old") and value[-1] == ("DELETED", "new")
    versions = [int(obj["metadata"]["resourceVersion"]) for _, obj in everything.events]
    assert versions == sorted(set(versions))


def test_watch_ends_by_time_restart_or_a_lost_version(http: httpx2.Client, server: Server) -> None:
    assert Watch(http, MAPS, timeoutSeconds="0").ended()
    watch = Watch(http, MAPS)
    until(lambda: server.count("watch") == 2)
    server.close_watches()
    assert watch.ended() and not watch.events
    server.storage.history = 2
    for number in range(4):
        server.storage.create("ConfigMap", "lab", {"metadata": {"name": f"m{number}"}})
    late = Watch(http, MAPS, resourceVersion="2")
    assert late.ended()
    [(event, status)] = late.events
    assert event == "ERROR" and (status["code"], status["reason"]) == (410, "Expired")


def test_a_token_is_asked_for_except_for_health(http: httpx2.Client, server: Server) -> None:
    stranger = {"Authorization": "Bearer guess"}
    assert reason(http.get(JOBS, headers=stranger)) == (401, "Unauthorized")
    assert http.get("/healthz", headers=stranger).text == "ok"
    assert http.get("/version", headers=stranger).json()["major"] == "1"


@pytest.mark.parametrize("path", ["/apis/batch/v1/namespaces/lab/widgets", f"{JOBS}/a/b/c"])
def test_a_path_that_a_built_in_group_has_not(http: httpx2.Client, path: str) -> None:
    assert reason(http.get(path)) == (404, "NotFound")


@pytest.mark.parametrize(
    "path",
    [
        "/apis/x.io/v1/jobs",
        "/nowhere",
        "/apis/jobset.x-k8s.io/v9/jobsets",
        "/apis/karpenter.sh/v1/namespaces/lab/nodepools",
    ],
)
def test_what_nobody_serves_is_not_even_a_status(http: httpx2.Client, path: str) -> None:
    answer = http.get(path)
    assert (answer.status_code, answer.text) == (404, "404 page not found\n")
    assert answer.headers["Content-Type"].startswith("text/plain")


@pytest.mark.parametrize("status", [403, 409, 429, 500, 503])
def test_a_fault_answers_instead_for_the_calls_it_names(http: httpx2.Client, server: Server, status: int) -> None:
    fault = server.faults.add(Fault("create", "Job", nth=2, times=2, status=status))
    codes = [http.post(JOBS, json=job(f"j{n}")).status_code for n in range(4)]
    assert codes == [201, status, status, 201] and fault.seen == 4
    assert http.get(JOBS).status_code == 200
    assert sorted(j["metadata"]["name"] for j in http.get(JOBS).json()["items"]) == ["j0", "j3"]
    assert [asked.status for asked in server.requests if asked.verb == "create"] == codes


@pytest.mark.parametrize("when, made", [("before", 0), ("after", 1)])
@pytest.mark.parametrize("by_hook", [False, True])
def test_a_connection_that_ends_before_or_after_the_deed(
    http: httpx2.Client, server: Server, when: Any, made: int, by_hook: bool
) -> None:
    calls: list[tuple[int, str, str]] = []

    def hook(number: int, call: Call, at: str) -> bool:
        calls.append((number, call.verb, at))
        return call.verb == "create" and at == when

    if by_hook:
        server.faults.on_request = hook
    else:
        server.faults.add(Fault("create", drop=when))
    with pytest.raises(httpx2.TransportError):
        http.post(JOBS, json=job())
    assert len(server.storage.list("Job")[0]) == made
    assert server.requests[-1].status == 0
    server.faults.clear()
    assert http.post(JOBS, json=job()).status_code == (409 if made else 201)
    expected = [(1, "create", "before"), (1, "create", "after")][: made + 1]
    assert not by_hook or calls == expected


def test_a_server_that_hangs_and_one_that_is_away(http: httpx2.Client, server: Server) -> None:
    server.faults.add(Fault("list", hang_s=60))
    with pytest.raises(httpx2.ReadTimeout):
        http.get(JOBS, timeout=httpx2.Timeout(60, read=0.1))
    http.post(JOBS, json=job())
    url = server.url
    with server.away(), pytest.raises(httpx2.ConnectError):
        http.get(JOBS)
    assert server.url == url
    assert len(http.get(JOBS).json()["items"]) == 1
