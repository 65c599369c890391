"""How long a launch bears with what does not begin, does not end, or goes on for too long."""

import time
from pathlib import Path

import pytest

from pipeline.storage import Store
from pipeline.training.launch import TrainingRefused
from pipeline.training.plan import TrainingPlan

from .conftest import ROOM, Cluster, Launch, Robot, ender, once_told, queue

Planned = tuple[Store, TrainingPlan]


def test_an_image_that_cannot_be_pulled_is_given_up(
    cluster: Cluster, planned: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("k8s.follow.NO_PROGRESS_S", 0.3)
    launched = Launch(cluster, planned, cluster.settings(tmp_path))
    with ender(cluster):
        for pod in cluster.pods():
            cluster.driver.waiting(pod, "ImagePullBackOff", "Back-off pulling image")
        error = launched.ended()
    assert isinstance(error, TrainingRefused)
    assert "ImagePullBackOff" in str(error)
    assert "Push it, or correct compute.kubernetes.image" in str(error)


def test_one_bad_pull_after_a_long_wait_for_quota_is_borne(cluster: Cluster, planned: Planned, tmp_path: Path) -> None:
    queue(cluster, {"cpu": "1", "memory": "1Gi"})
    hour = [0.0]
    launched = Launch(
        cluster, planned, cluster.settings(tmp_path, start_timeout_s=7200.0), now=lambda: time.time() + hour[0]
    )
    cluster.driver.wait_until(lambda: any("queued" in line for line in launched.lines), "the queue")
    hour[0] = 3600.0
    queue(cluster, ROOM)
    first, second = cluster.pods()
    cluster.driver.waiting(first, "ErrImagePull", "toomanyrequests")
    cluster.driver.wait_until(lambda: any("image" in line for line in launched.lines), "the bad pull")
    for pod in (first, second):
        cluster.driver.run(pod)
    cluster.driver.wait_until(lambda: any("running: 2 pods" in line for line in launched.lines), "its start")
    with Robot(cluster, planned):
        assert launched.ended() is None


def test_a_training_that_runs_too_long_is_ended_and_not_tried_again(
    cluster: Cluster, planned: Planned, tmp_path: Path
) -> None:
    told: list[Launch] = []
    told.append(Launch(cluster, planned, cluster.settings(tmp_path), now=once_told(told, "running: 2 pods")))
    cluster.run_all()
    with ender(cluster):
        error = told[0].ended()
    assert isinstance(error, TrainingRefused)
    assert "longer than training.timeout_s" in str(error)


def test_a_claim_that_is_not_there_is_said_and_not_taken_for_a_lack_of_nodes(
    cluster: Cluster, planned: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("k8s.follow.NO_PROGRESS_S", 0.3)
    launched = Launch(cluster, planned, cluster.settings(tmp_path, claim="missing"))
    with ender(cluster):
        for pod in cluster.pods():
            message = '0/3 nodes are available: persistentvolumeclaim "missing" not found.'
            cluster.driver.unschedulable(pod, message)
        error = launched.ended()
    assert isinstance(error, TrainingRefused)
    assert "correct compute.kubernetes.claim" in str(error)


def test_a_gang_whose_deletion_never_ends_does_not_hold_its_launch_for_ever(
    cluster: Cluster, planned: Planned, tmp_path: Path
) -> None:
    told: list[Launch] = []
    told.append(Launch(cluster, planned, cluster.settings(tmp_path), now=once_told(told, "leaving")))
    cluster.run_all()  # and nobody ends them
    (jobset,) = cluster.jobsets()
    cluster.driver.wait_until(lambda: any("running" in line for line in told[0].lines), "its start")
    cluster.api.delete("JobSet", cluster.namespace, jobset["metadata"]["name"], propagationPolicy="Foreground")
    error = told[0].ended()
    assert isinstance(error, TrainingRefused)
    assert "Somebody deleted it" in str(error)


def test_no_node_for_too_long_is_a_failure_that_a_retry_may_mend(
    cluster: Cluster, planned: Planned, tmp_path: Path
) -> None:
    settings = cluster.settings(tmp_path, instance_type="p5en.48xlarge")
    queue(cluster, {"cpu": "1000", "memory": "10Ti", "nvidia.com/gpu": "16", "vpc.amazonaws.com/efa": "64"})
    told: list[Launch] = []
    told.append(Launch(cluster, planned, settings, now=once_told(told, "no capacity: pod")))
    with ender(cluster):
        error = told[0].ended()
    assert type(error) is RuntimeError
    assert "no capacity" in str(error)
    assert "spot_first" in str(error)
    cluster.driver.wait_until(lambda: not cluster.jobsets(), "the end of the JobSet")


def test_quota_that_never_comes_is_said_in_the_words_of_the_queue(
    cluster: Cluster, planned: Planned, tmp_path: Path
) -> None:
    queue(cluster, {"cpu": "1", "memory": "1Gi"})
    told: list[Launch] = []
    told.append(Launch(cluster, planned, cluster.settings(tmp_path), now=once_told(told, "couldn't assign flavors")))
    error = told[0].ended()
    assert isinstance(error, TrainingRefused)
    assert "couldn't assign flavors" in str(error)
    assert cluster.driver.pods(cluster.namespace) == []
