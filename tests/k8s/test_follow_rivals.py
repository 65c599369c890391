"""Two launchers of one plan at once: whatever happens between two requests of the one, they follow one gang and agree.

The late one is held before a request of its own while the other goes on.
"""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from k8s.attempts import GangAttempts
from k8s.client import KubernetesClient
from pipeline.core.storage import Store
from pipeline.training.plan import TrainingPlan

from .conftest import GANG, Cluster, Launch, Robot, ender

pytestmark = pytest.mark.slow

Planned = tuple[Store, TrainingPlan]
COUNTS, COUNTED, APPLIES = ("GET", "/pods", 1), ("GET", "/pods", 2), ("PATCH", "/jobsets/", 1)
"""A launcher's requests, by method and words of the path: the first and the second that list pods, and the one that
puts the gang into the cluster."""


class Held:
    """The client's connection, which waits before its nth request of that method with those words in its path."""

    def __init__(self, http: Any, method: str, words: str, nth: int) -> None:
        self._http, self._method, self._words, self._left = http, method, words, nth
        self.base_url = http.base_url
        self.reached, self.released = threading.Event(), threading.Event()

    def request(self, method: str, path: str, **arguments: Any) -> Any:
        self._left -= method == self._method and self._words in path
        if self._left == 0 and not self.reached.is_set():
            self.reached.set()
            assert self.released.wait(120), "nobody let it go on"
        return self._http.request(method, path, **arguments)


@pytest.fixture(params=[COUNTS, COUNTED, APPLIES], ids=["counts pods", "counted pods", "applies"])
def late(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[tuple[KubernetesClient, Held]]:
    """A client, and its connection, which is held once a launcher has looked for its gang in vain."""
    client = cluster.connect()
    client._http = held = Held(client._http, *request.param)
    yield client, held
    held.released.set()


def running(cluster: Cluster, launched: Launch) -> None:
    """Wait until a launcher has seen its gang run."""
    cluster.driver.wait_until(lambda: any("running: 2 pods" in line for line in launched.lines), "the look at it")


def test_launcher_overtaken_while_it_makes_follows_the_gang(
    cluster: Cluster, planned: Planned, tmp_path: Path, late: tuple[KubernetesClient, Held]
) -> None:
    """It saw no gang; the other has made one since, whose pods are no leftover to be waited for."""
    settings, (client, held) = cluster.settings(tmp_path, max_restarts=0), late
    overtaken = Launch(cluster, planned, settings, client)
    assert held.reached.wait(120)
    first = Launch(cluster, planned, settings)
    with ender(cluster):
        pods = cluster.run_all()
        running(cluster, first)
        held.released.set()
        running(cluster, overtaken)
        cluster.driver.finish(pods[0], 1)
        errors = [launched.ended() for launched in (first, overtaken)]
    assert [type(error) for error in errors] == [RuntimeError, RuntimeError], errors
    assert all("exit code 1" in str(error) for error in errors)
    assert [(each.attempt, each.outcome) for each in GangAttempts(planned[0], planned[1].iteration).all()] == [
        (1, "crashed")
    ]
    if (applied := cluster.asked("patch", "JobSet")) is not None:
        assert len({path for path in applied if not path.endswith("/status")}) == 1


def test_gang_that_its_queue_has_changed_meanwhile_is_followed(
    cluster: Cluster, planned: Planned, tmp_path: Path
) -> None:
    """Kueue writes into the worker groups of a RayJob, which is a conflict for who applies it again."""
    settings, client = cluster.settings(tmp_path, backend="rayjob"), cluster.connect()
    client._http = held = Held(client._http, "PATCH", "/rayjobs/", 1)
    overtaken = Launch(cluster, planned, settings, client)
    assert held.reached.wait(120)
    first = Launch(cluster, planned, settings)
    cluster.pods(GANG["rayjob"] - 1)  # Kueue has let it go
    held.released.set()
    with Robot(cluster, planned, GANG["rayjob"]):
        assert [launched.ended() for launched in (first, overtaken)] == [None, None]
    assert [(each.attempt, each.outcome) for each in GangAttempts(planned[0], planned[1].iteration).all()] == [
        (1, "succeeded")
    ]


def test_launcher_overtaken_by_a_whole_attempt_makes_nothing(
    cluster: Cluster, planned: Planned, tmp_path: Path, late: tuple[KubernetesClient, Held]
) -> None:
    """While it was held the gang came, crashed and was cleared away: it says the same, and no gang comes back."""
    settings, (client, held) = cluster.settings(tmp_path, max_restarts=0), late
    overtaken = Launch(cluster, planned, settings, client)
    assert held.reached.wait(120)
    first = Launch(cluster, planned, settings)
    with ender(cluster):
        cluster.driver.finish(cluster.run_all()[0], 1)
        assert isinstance(first.ended(), RuntimeError)
        held.released.set()
        error = overtaken.ended()
        cluster.driver.wait_until(lambda: not cluster.jobsets() and not cluster.driver.pods(cluster.namespace), "none")
    assert type(error) is RuntimeError
    assert "exit code 1" in str(error)
    with Robot(cluster, planned) as robot:
        assert Launch(cluster, planned, settings).ended() is None
    assert [(each.attempt, each.outcome) for each in GangAttempts(planned[0], planned[1].iteration).all()] == [
        (1, "crashed"),
        (2, "succeeded"),
    ]
    assert all(len(writers) <= 1 for writers in robot.writers)
