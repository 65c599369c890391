"""The launcher against an API server that fails it, and launchers that are killed."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from k8s.attempts import GangAttempts
from k8s.client import KubernetesClient
from pipeline.core.storage import Store
from pipeline.training.checkpoints.claims import claim
from pipeline.training.launch import TrainingRefused
from pipeline.training.plan import TrainingPlan

from .cluster.faults import Fault
from .cluster.gangs import requires as required
from .conftest import GANG, Cluster, Launch, Robot, ender, once_told, those_that_end

pytestmark = pytest.mark.slow

Planned = tuple[Store, TrainingPlan]


class Killed(BaseException):
    """As if the launcher's process ended here: nothing of it runs any more."""


class Mortal:
    """The client's connection, which ends the launcher at its nth call, before it is sent or after it was answered."""

    def __init__(self, http: Any, nth: int, after: bool) -> None:
        self._http, self._left, self._after = http, nth, after
        self.base_url = http.base_url

    def request(self, method: str, path: str, **arguments: Any) -> Any:
        self._left -= 1
        if self._left == 0 and not self._after:
            raise Killed
        answer = self._http.request(method, path, **arguments)
        if self._left == 0:
            raise Killed
        return answer


def kills(answered: Sequence[int], unsent: Iterable[int]) -> Iterator[Any]:
    """Calls whose answer is lost with the launcher, and calls before which it wrote a record of its own. The one that
    puts the gang into the cluster stands for the others, and the last one."""
    slow, variant = pytest.mark.slow, pytest.mark.variant
    for nth in answered:
        marks = [] if nth == 3 else [slow] if nth == answered[-1] else [slow, variant]
        yield pytest.param(nth, True, id=f"{nth}-after", marks=marks)
    for nth in unsent:
        yield pytest.param(nth, False, id=f"{nth}-before", marks=[] if nth == 3 else [slow, variant])


def mortal(cluster: Cluster, nth: int, after: bool) -> KubernetesClient:
    client = cluster.connect()
    client._http = Mortal(client._http, nth, after)
    return client


@pytest.mark.parametrize(("nth", "after"), [*kills(range(1, 8), unsent=(1, 3))])
def test_launcher_finds_the_gang_of_one_killed_at_any_call(
    cluster: Cluster, planned: Planned, tmp_path: Path, nth: int, after: bool
) -> None:
    settings = cluster.settings(tmp_path)
    killed = Launch(cluster, planned, settings, mortal(cluster, nth, after))
    if nth > 3:  # by then it waits for the pods
        cluster.run_all()
    assert isinstance(killed.ended(), Killed)
    with Robot(cluster, planned) as robot:
        again = Launch(cluster, planned, settings)
        assert again.ended() is None, again.lines
    if (applied := cluster.asked("patch", "JobSet")) is not None:
        assert len(set(applied)) == 1  # under one name, however often it was applied
    assert len(cluster.jobsets()) == 1
    assert all(len(writers) <= 1 for writers in robot.writers)
    (attempt,) = GangAttempts(planned[0], planned[1].iteration).all()
    assert (attempt.attempt, attempt.outcome) == (1, "succeeded")


def test_slow_launcher_leaves_a_newer_attempt_alone(cluster: Cluster, planned: Planned, tmp_path: Path) -> None:
    """The slow one looks away while its attempt fails, is cleared away, and another is begun."""
    settings, awake = cluster.settings(tmp_path, backend="rayjob"), threading.Event()
    slow = Launch(cluster, planned, settings, sleep=lambda seconds: awake.wait(600) and None)
    (submitter,) = those_that_end(cluster.run_gang("rayjob"))
    fast = Launch(cluster, planned, settings)
    cluster.driver.wait_until(lambda: any("running" in line for line in fast.lines), "the other's look")
    cluster.driver.finish(submitter, 143)
    attempts = GangAttempts(planned[0], planned[1].iteration)
    with ender(cluster):
        cluster.driver.wait_until(lambda: len(attempts.all()) == 2, "a new attempt")
    with Robot(cluster, planned, GANG["rayjob"]):
        assert fast.ended() is None, fast.lines
        awake.set()
        assert slow.ended() is None, slow.lines
    outcomes = [(each.attempt, each.outcome) for each in GangAttempts(planned[0], planned[1].iteration).all()]
    assert outcomes == [(1, "preempted"), (2, "succeeded")]


@pytest.mark.parametrize(("nth", "after"), [*kills(range(1, 7), unsent=(1, 3, 4))])
def test_launcher_killed_while_clearing_leaves_no_second_gang(
    cluster: Cluster, planned: Planned, tmp_path: Path, nth: int, after: bool
) -> None:
    settings = cluster.settings(tmp_path, max_restarts=0)
    first = Launch(cluster, planned, settings, sleep=lambda seconds: (_ for _ in ()).throw(Killed()))
    assert isinstance(first.ended(), Killed)
    pod, peer = cluster.run_all()
    cluster.driver.finish(pod, 1)
    cluster.driver.wait_until(lambda: _going(cluster, peer), "the end of its peer")
    cluster.driver.end(peer)
    (jobset,) = cluster.jobsets()
    cluster.driver.wait_for("JobSet", cluster.namespace, jobset["metadata"]["name"], "Failed")
    killed = Launch(cluster, planned, settings, mortal(cluster, nth, after))
    killed.ended()
    with Robot(cluster, planned) as robot:
        for _ in range(2):  # it may hear of the crash first, as the killed one would have
            if Launch(cluster, planned, settings).ended() is None:
                break
        else:
            raise AssertionError("no launch came to an end")
    assert len(cluster.jobsets()) == 1
    assert all(len(writers) <= 1 for writers in robot.writers)


@pytest.mark.parametrize("recorded", [True, False], ids=["on record", "by its trainer alone"])
def test_gang_that_vanished_unwatched_is_a_new_attempt(
    cluster: Cluster, planned: Planned, tmp_path: Path, recorded: bool
) -> None:
    """Its trainer may have been further than the first start of the attempt, and would refuse to begin again there."""
    settings = cluster.settings(tmp_path)
    if recorded:
        first = Launch(cluster, planned, settings, sleep=lambda seconds: (_ for _ in ()).throw(Killed()))
    else:  # killed as the answer came that it is there
        first = Launch(cluster, planned, settings, mortal(cluster, 3, after=True))
    assert isinstance(first.ended(), Killed)
    if not recorded:
        claim(planned[0].path(f"iterations/{planned[1].iteration}/training"), 1)
    with ender(cluster):
        cluster.run_all()
        (jobset,) = cluster.jobsets()
        cluster.api.delete("JobSet", cluster.namespace, jobset["metadata"]["name"], propagationPolicy="Foreground")
        cluster.driver.wait_gone("JobSet", cluster.namespace, jobset["metadata"]["name"])
    with Robot(cluster, planned) as robot:
        assert Launch(cluster, planned, settings).ended() is None
    outcomes = [(each.attempt, each.outcome) for each in GangAttempts(planned[0], planned[1].iteration).all()]
    assert outcomes == [(1, "gone"), (2, "succeeded")]
    assert robot.writers[-1] <= {"2"}


def _going(cluster: Cluster, pod: dict[str, Any]) -> bool:
    result = cluster.api.find("Pod", cluster.namespace, pod["metadata"]["name"])
    return result is None or "deletionTimestamp" in result["metadata"]


def test_an_api_server_that_is_away_for_long_loses_nothing(cluster: Cluster, planned: Planned, tmp_path: Path) -> None:
    launched = Launch(cluster, planned, cluster.settings(tmp_path))
    cluster.run_all()
    with cluster.ours.away():
        cluster.driver.wait_until(lambda: any("waiting for the API server" in line for line in launched.lines))
    with Robot(cluster, planned):
        assert launched.ended() is None
    assert len(cluster.jobsets()) == 1


def test_api_server_that_stays_away_ends_the_step_alone(cluster: Cluster, planned: Planned, tmp_path: Path) -> None:
    passed = [0.0]

    def now() -> float:
        passed[0] += 120.0  # each look at the clock is two minutes later
        return passed[0]

    settings = cluster.settings(tmp_path, start_timeout_s=1e9)
    launched = Launch(cluster, planned, settings, now=now)
    cluster.run_all()
    with cluster.ours.away():
        error = launched.ended()
    assert type(error) is RuntimeError
    assert "goes on; run this again" in str(error)
    with Robot(cluster, planned):
        assert Launch(cluster, planned, settings).ended() is None
    assert len(cluster.jobsets()) == 1


FORBIDDEN = {
    "patch JobSet": Fault(verb="patch", kind="JobSet", status=403, times=0),
    "get JobSet": Fault(verb="get", kind="JobSet", status=403, times=0),
    "list Pod": Fault(verb="list", kind="Pod", status=403, times=0),
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_a_right_that_is_missing_ends_the_launch_with_its_name(
    cluster: Cluster, planned: Planned, tmp_path: Path, name: str
) -> None:
    cluster.ours.faults.add(FORBIDDEN[name])
    launches = list[Launch]()
    launches.append(Launch(cluster, planned, cluster.settings(tmp_path), now=once_told(launches, "asking again")))
    error = launches[0].ended()
    assert isinstance(error, TrainingRefused)
    assert "list all that a launch needs" in str(error)


def test_api_server_without_its_rights_yet_ends_no_launch(cluster: Cluster, planned: Planned, tmp_path: Path) -> None:
    """As one answers for a moment after its start; a right that was really taken away ends the launch in the end."""
    passed, refused = [0.0], threading.Event()

    def now() -> float:
        passed[0] += 30.0 * refused.is_set()
        return passed[0]

    launched = Launch(cluster, planned, cluster.settings(tmp_path), now=now)
    cluster.run_all()
    cluster.driver.wait_until(lambda: any("running" in line for line in launched.lines), "the look at it")
    moment = cluster.ours.faults.add(Fault(verb="get", kind="JobSet", status=403, times=3))
    cluster.driver.wait_until(lambda: moment.seen > 4, "answers after the refusals")
    assert launched.is_alive()
    assert any("asking again" in line for line in launched.lines)
    refused.set()
    cluster.ours.faults.add(Fault(verb="get", kind="JobSet", status=403, times=0))
    assert isinstance(launched.ended(), TrainingRefused)
    assert "list all that a launch needs" in str(launched.error)
    assert len(cluster.jobsets()) == 1


def test_a_log_that_may_not_be_read_fails_nothing(cluster: Cluster, planned: Planned, tmp_path: Path) -> None:
    cluster.ours.faults.add(Fault(subresource="log", status=403, times=0))
    with Robot(cluster, planned):
        assert Launch(cluster, planned, cluster.settings(tmp_path)).ended() is None


@pytest.mark.parametrize(
    "fault",
    [Fault(verb="get", status=500, nth=3, times=3), Fault(verb="list", drop="after", nth=2, times=4),
     Fault(verb="patch", drop="after"), Fault(verb="patch", status=429)],
    ids=["500", "answers lost", "apply's answer lost", "too many requests"],
)  # fmt: skip
def test_bad_moments_are_waited_out(cluster: Cluster, planned: Planned, tmp_path: Path, fault: Fault) -> None:
    cluster.ours.faults.add(Fault(**vars(fault)))
    with Robot(cluster, planned):
        assert Launch(cluster, planned, cluster.settings(tmp_path)).ended() is None
    assert len(cluster.jobsets()) == 1


def test_what_a_running_gang_asks_of_the_api_server(cluster: Cluster, planned: Planned, tmp_path: Path) -> None:
    looks = [0]

    def sleep(seconds: float) -> None:
        looks[0] += 1
        if looks[0] > 60:
            raise Killed

    launched = Launch(cluster, planned, cluster.settings(tmp_path), sleep=sleep)
    cluster.run_all()
    assert isinstance(launched.ended(), Killed)
    result = 3  # a look in vain, the pods of every attempt, the object
    assert launched.client.requests <= result + 3 * 61  # the object, its pods and the log, each time


BACKENDS = ("volcano", "rayjob")


def requires(cluster: Cluster, backend: str) -> None:
    """Skip where the cluster does not have the backend's operator."""
    if backend == "rayjob":  # KubeRay asks the head's dashboard, and nobody plays that
        assert cluster.ours
    if backend == "volcano":
        required(cluster.driver, "VolcanoJob")


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_comes_to_its_end(cluster: Cluster, planned: Planned, tmp_path: Path, backend: str) -> None:
    requires(cluster, backend)
    settings = cluster.settings(tmp_path, backend=backend)
    with Robot(cluster, planned, GANG[backend]):
        launched = Launch(cluster, planned, settings)
        assert launched.ended() is None, launched.lines
    assert [each.outcome for each in GangAttempts(planned[0], planned[1].iteration).all()] == ["succeeded"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_fails_at_once_for_a_plan_that_is_refused(
    cluster: Cluster, planned: Planned, tmp_path: Path, backend: str
) -> None:
    requires(cluster, backend)
    launched = Launch(cluster, planned, cluster.settings(tmp_path, backend=backend))
    cluster.driver.finish(those_that_end(cluster.run_gang(backend))[0], 64)
    while launched.is_alive():
        for pod in cluster.driver.pods(cluster.namespace):
            if "deletionTimestamp" in pod["metadata"]:
                cluster.driver.end(pod)
        launched.join(0.05)
    assert isinstance(launched.error, TrainingRefused), launched.error
    assert "refuses the plan" in str(launched.error)
