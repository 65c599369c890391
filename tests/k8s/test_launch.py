"""The launcher on a cluster: what comes of a gang, and what the run hears of it. PodDriver play the kubelets."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from k8s.attempts import GangAttempts
from k8s.classify import Classification
from pipeline.core.storage import Store
from pipeline.training.launch import TrainingRefused
from pipeline.training.plan import TrainingPlan
from tests.variants import one_and_variants

from .conftest import GANG, Cluster, Launch, Robot, ender, leave_result, those_that_end

pytestmark = pytest.mark.slow

Planned = tuple[Store, TrainingPlan]
CRASHES = [backend for backend in GANG if backend != "volcano"]
"""Backends with which a crash ends the gang: Volcano starts it again."""
RANK = "batch.kubernetes.io/job-completion-index"


def attempts(planned: Planned) -> list[tuple[int, str]]:
    """Number and outcome of each."""
    store, plan = planned
    return [(each.attempt, each.outcome) for each in GangAttempts(store, plan.iteration).all()]


def test_a_gang_comes_trains_and_ends(cluster: Cluster, planned: Planned, tmp_path: Path) -> None:
    launched = Launch(cluster, planned, cluster.settings(tmp_path))
    pods = cluster.run_all()
    assert {pod["metadata"]["labels"]["preference-tuning/iteration"] for pod in pods} == {planned[1].iteration}
    cluster.driver.wait_until(lambda: any("running: 2 pods" in line for line in launched.lines), "the word of it")
    result = leave_result(*planned)
    for pod in pods:
        cluster.driver.finish(pod, 0)
    assert launched.ended() is None
    assert launched.result == result
    assert attempts(planned) == [(1, "succeeded")]
    again = Launch(cluster, planned, cluster.settings(tmp_path))
    assert again.ended() is None
    assert again.result == result
    assert again.client.requests == 0


def test_eviction_restarts_the_gang_uncounted(cluster: Cluster, planned: Planned, tmp_path: Path) -> None:
    launched = Launch(cluster, planned, cluster.settings(tmp_path, max_restarts=0))
    for round_ in range(3):
        first, second = cluster.run_all()
        assert first["metadata"]["labels"]["jobset.sigs.k8s.io/restart-attempt"] == str(round_)
        cluster.driver.evict(first)
        cluster.driver.wait_until(lambda pod=second: _going(cluster, pod), "the end of its peer")
        cluster.driver.end(second)
    pods = cluster.run_all()
    leave_result(*planned)
    for pod in pods:
        cluster.driver.finish(pod, 0)
    assert launched.ended() is None
    (attempt,) = GangAttempts(planned[0], planned[1].iteration).all()
    assert (attempt.outcome, attempt.restarts) == ("succeeded", 3)


def _going(cluster: Cluster, pod: dict[str, Any]) -> bool:
    result = cluster.api.find("Pod", cluster.namespace, pod["metadata"]["name"])
    return result is None or "deletionTimestamp" in result["metadata"]


def test_gang_evicted_without_progress_is_given_up(
    cluster: Cluster, planned: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("k8s.follow.FRUITLESS", 2)
    looks = [0]

    def sleep(seconds: float) -> None:
        looks[0] += 1
        time.sleep(seconds)

    launched = Launch(cluster, planned, cluster.settings(tmp_path), sleep=sleep)
    evicted: set[str] = set()
    with ender(cluster):
        while launched.is_alive() and len(evicted) < 10:
            for pod in cluster.driver.pods(cluster.namespace):
                if pod["metadata"]["labels"][RANK] == "0" and pod["metadata"]["uid"] not in evicted:
                    # A start that goes before the launcher has had a whole look at it is none that it can count.
                    before = looks[0]
                    cluster.driver.wait_until(lambda at=before: looks[0] > at + 1 or not launched.is_alive(), "a look")
                    cluster.driver.run(pod)
                    cluster.driver.evict(pod)
                    evicted.add(pod["metadata"]["uid"])
            launched.join(0.1)
    assert isinstance(launched.error, TrainingRefused)
    assert "left no newer checkpoint" in str(launched.error)
    assert attempts(planned) == [(1, "stuck")]
    assert 2 <= len(evicted) <= 4


ENDINGS = {
    "refused": (64, "", TrainingRefused, "the trainer refuses the plan"),
    "out_of_memory": (137, "OOMKilled", TrainingRefused, "took more memory than its limit"),
    "crashed": (1, "", RuntimeError, "exit code 1"),
}


@pytest.mark.parametrize("outcome", ENDINGS)
def test_each_end_of_a_gang_is_told_apart(cluster: Cluster, planned: Planned, tmp_path: Path, outcome: str) -> None:
    code, reason, kind, words = ENDINGS[outcome]
    launched = Launch(cluster, planned, cluster.settings(tmp_path, max_restarts=0))
    with ender(cluster):
        cluster.driver.finish(cluster.run_all()[1], code, reason)
        error = launched.ended()
    assert type(error) is kind
    assert words in str(error)
    assert attempts(planned) == [(1, outcome)]
    cluster.driver.wait_until(lambda: not cluster.jobsets(), "the end of the JobSet")


def test_crash_is_followed_by_an_attempt_after_its_pods(cluster: Cluster, planned: Planned, tmp_path: Path) -> None:
    settings = cluster.settings(tmp_path, max_restarts=0)
    launched = Launch(cluster, planned, settings)
    with ender(cluster):
        cluster.driver.finish(cluster.run_all()[0], 1)
        assert isinstance(launched.ended(), RuntimeError)
    with Robot(cluster, planned) as robot:
        again = Launch(cluster, planned, settings)
        assert again.ended() is None
    assert attempts(planned) == [(1, "crashed"), (2, "succeeded")]
    assert all(len(writers) <= 1 for writers in robot.writers)


def test_an_object_of_somebody_else_is_left_as_it_is(cluster: Cluster, planned: Planned, tmp_path: Path) -> None:
    from k8s.gang import gang_of
    from k8s.render import primary

    settings = cluster.settings(tmp_path)
    theirs = primary(gang_of(planned[1], Path("/x"), settings))
    theirs["metadata"]["labels"] = {"app": "theirs", "kueue.x-k8s.io/queue-name": "none"}
    cluster.api.create(theirs)
    error = Launch(cluster, planned, settings).ended()
    assert isinstance(error, TrainingRefused)
    assert "none of this training's" in str(error)
    assert cluster.jobsets()[0]["metadata"]["labels"]["app"] == "theirs"


def test_gang_that_a_person_deletes_stays_deleted(cluster: Cluster, planned: Planned, tmp_path: Path) -> None:
    settings = cluster.settings(tmp_path)
    launched = Launch(cluster, planned, settings)
    cluster.run_all()
    with ender(cluster):
        (jobset,) = cluster.jobsets()
        cluster.api.delete("JobSet", cluster.namespace, jobset["metadata"]["name"])
        error = launched.ended()
    assert isinstance(error, TrainingRefused)
    assert "Somebody deleted it" in str(error)
    with Robot(cluster, planned):
        assert Launch(cluster, planned, settings).ended() is None
    assert attempts(planned) == [(1, "deleted"), (2, "succeeded")]


class Interrupted(BaseException):
    """As Dagster interrupts a step."""


@pytest.mark.parametrize("cancelled", [True, False])
def test_cancelled_run_deletes_its_gang_an_interrupted_one_not(
    cluster: Cluster, planned: Planned, tmp_path: Path, cancelled: bool
) -> None:
    interrupt = threading.Event()

    def sleep(seconds: float) -> None:
        if interrupt.wait(seconds):
            raise Interrupted

    settings = cluster.settings(tmp_path)
    launched = Launch(cluster, planned, settings, sleep=sleep, cancelled=lambda: cancelled)
    cluster.run_all()
    (before,) = cluster.jobsets()
    with ender(cluster):
        interrupt.set()
        assert isinstance(launched.ended(), Interrupted)
        if cancelled:
            cluster.driver.wait_gone("JobSet", cluster.namespace, before["metadata"]["name"])
    with Robot(cluster, planned):
        assert Launch(cluster, planned, settings).ended() is None
    (after,) = cluster.jobsets()
    assert (after["metadata"]["uid"] == before["metadata"]["uid"]) is not cancelled
    assert attempts(planned) == ([(1, "deleted"), (2, "succeeded")] if cancelled else [(1, "succeeded")])


@pytest.mark.parametrize("backend", one_and_variants(GANG))
def test_two_launchers_follow_one_gang(cluster: Cluster, planned: Planned, tmp_path: Path, backend: str) -> None:
    settings = cluster.settings(tmp_path, backend=backend)
    both = [Launch(cluster, planned, settings) for _ in range(2)]
    with Robot(cluster, planned, GANG[backend]) as robot:
        assert [launched.ended() for launched in both] == [None, None]
    assert both[0].result == both[1].result
    assert attempts(planned) == [(1, "succeeded")]
    assert all(len(writers) <= 1 for writers in robot.writers)


@pytest.mark.parametrize("backend", one_and_variants(CRASHES))
def test_two_launchers_say_the_same_of_a_crash(
    cluster: Cluster, planned: Planned, tmp_path: Path, backend: str
) -> None:
    """The first clears the gang away: to the other that is no deletion by somebody, nor its own to try again."""
    settings = cluster.settings(tmp_path, max_restarts=0, backend=backend)
    both = [Launch(cluster, planned, settings) for _ in range(2)]
    with ender(cluster):
        pods = cluster.run_gang(backend)
        for launched in both:
            lines = launched.lines
            cluster.driver.wait_until(
                lambda lines=lines: any(f"running: {GANG[backend]} pods" in line for line in lines),
                str(lines),
            )
        cluster.driver.finish(those_that_end(pods)[0], 1)
        errors = [launched.ended() for launched in both]
    assert [type(error) for error in errors] == [RuntimeError, RuntimeError], errors
    assert all("exit code 1" in str(error) for error in errors)
    assert attempts(planned) == [(1, "crashed")], [launched.lines for launched in both]


def test_settled_end_is_cleared_away_by_the_next_launch(cluster: Cluster, planned: Planned, tmp_path: Path) -> None:
    settings = cluster.settings(tmp_path)
    kept = GangAttempts(planned[0], planned[1].iteration)
    kept.current(0.0, lambda number: "a")
    assert kept.end(1, Classification("out_of_memory", "killed")).cause == "out_of_memory"
    assert kept.end(1, Classification("deleted", "")).cause == "out_of_memory", "the first word stands"
    with Robot(cluster, planned):
        assert Launch(cluster, planned, settings).ended() is None
    assert attempts(planned) == [(1, "out_of_memory"), (2, "succeeded")]


def test_names_of_any_kind_make_a_gang(cluster: Cluster, planned: Planned, tmp_path: Path) -> None:
    store, plan = planned
    odd = plan.model_copy(update={"iteration": "Ü ---\nkind: Secret"})
    store.write(f"iterations/{odd.iteration}/training/plan.json", odd)
    with Robot(cluster, (store, odd)):
        assert Launch(cluster, (store, odd), cluster.settings(tmp_path)).ended() is None


def test_namespace_under_deletion_is_no_matter_of_rights(cluster: Cluster, planned: Planned, tmp_path: Path) -> None:
    name = f"{cluster.namespace}-ending"
    held = {"name": "held", "namespace": name, "finalizers": ["example.com/held"]}
    cluster.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    cluster.api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": held})
    cluster.api.delete("Namespace", "", name)
    owner = cluster.connect(as_owner=True)
    error = Launch(cluster, planned, cluster.settings(tmp_path, namespace=name), owner).ended()
    cluster.api.patch("ConfigMap", name, "held", {"metadata": {"finalizers": None}})
    assert isinstance(error, TrainingRefused)
    assert "Make the namespace again once it is gone" in str(error)


def test_a_namespace_that_is_not_there_is_said(cluster: Cluster, planned: Planned, tmp_path: Path) -> None:
    owner = cluster.connect(as_owner=True)
    error = Launch(cluster, planned, cluster.settings(tmp_path, namespace="nowhere-at-all"), owner).ended()
    assert isinstance(error, TrainingRefused)
    assert "create the namespace" in str(error)
