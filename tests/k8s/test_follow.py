"""What a launch passes on of a gang's log, how long it bears with each state, and when starts lead nowhere."""

import time
from pathlib import Path
from typing import Any

import pytest

from k8s.attempts import GangAttempts
from k8s.follow import FRUITLESS, GangFollower, GangProgress, Hooks
from k8s.gang import Gang, example, gang_of
from k8s.launch import CHECKPOINTS
from k8s.log_tail import KEPT, LogTail
from k8s.observe import Observed, PodSeen
from k8s.render import render
from pipeline.core.storage import Store
from pipeline.recipe import Compute, Kubernetes, Training
from pipeline.training.launch import TrainingRefused
from pipeline.training.plan import TrainingPlan

from .conftest import ROOM, Cluster, Launch, Robot, ender, once_told, queue

POD = PodSeen("pod-0", 0, "Running", None, "", "", "", "")


STAMP = "2026-01-05T10:00:00Z"
RUNNING = Observed("running", pods=(POD,))


class Logs:
    """What the API would answer, by whole seconds, as it does."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.asked: list[str] = []

    def log(self, namespace: str, pod: str, container: str, since: str = "") -> list[str]:
        self.asked.append(since)
        return [line for line in self.lines if line[:19] >= since[:19]]

    def add(self, second: int, text: str, nanos: int = 0) -> None:
        self.lines.append(f"2026-01-05T10:00:{second:02}.{nanos:09}Z {text}")


@pytest.fixture
def gang(tmp_path: Path) -> Gang:
    compute = Compute(kubernetes=Kubernetes(image="i@sha256:0", instance_type="cpu"))
    return example("x", str(tmp_path), compute, Training(grace_s=100, timeout_s=600))


def test_log_tail_tells_each_line_once(gang: Gang) -> None:
    logs, value = Logs(), list[str]()
    tail = LogTail(logs, gang, value.append, lambda line: False)  # type: ignore[arg-type]
    for step in range(6):
        logs.add(step // 2, f"training: step {step}", nanos=step)
        tail.follow(RUNNING)
    assert value == [f"training: step {step}" for step in range(6)]
    assert logs.asked[-1] == "2026-01-05T10:00:02Z"


@pytest.mark.parametrize("noise", ["Loading: 10%\rLoading: 50%", "a\x0bb", "a\u2028b", "a\x85b", "", "\r"])
def test_noise_does_not_end_the_tail(gang: Gang, noise: str) -> None:
    logs, value = Logs(), list[str]()
    tail = LogTail(logs, gang, value.append, lambda line: False)  # type: ignore[arg-type]
    logs.add(1, noise)
    tail.follow(RUNNING)
    logs.add(2, "training: step 1")
    tail.follow(RUNNING)
    assert value == ["training: step 1"]


def test_the_last_lines_are_kept_for_a_report(gang: Gang) -> None:
    logs = Logs()
    tail = LogTail(logs, gang, lambda line: None, lambda line: "taken" in line)  # type: ignore[arg-type]
    for number in range(KEPT + 5):
        logs.add(number // 60, f"line {number}", nanos=number)
    logs.add(59, "taken by Pipes")
    tail.follow(RUNNING)
    assert tail.last().splitlines()[-1] == f"line {KEPT + 4}"
    assert len(tail.last().splitlines()) == KEPT + 2
    assert "taken" not in tail.last()


Planned = tuple[Store, TrainingPlan]


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_training_over_its_timeout_is_ended_for_good(cluster: Cluster, planned: Planned, tmp_path: Path) -> None:
    lines: list[Launch] = []
    lines.append(Launch(cluster, planned, cluster.settings(tmp_path), now=once_told(lines, "running: 2 pods")))
    cluster.run_all()
    with ender(cluster):
        error = lines[0].ended()
    assert isinstance(error, TrainingRefused)
    assert "longer than its time-out" in str(error)


@pytest.mark.slow
def test_missing_claim_is_not_taken_for_a_lack_of_nodes(
    cluster: Cluster, planned: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("k8s.follow.NO_PROGRESS_S", 0.3)
    owner = cluster.connect(as_owner=True)  # whom no policy bounds
    launched = Launch(cluster, planned, cluster.settings(tmp_path, claim="missing"), owner)
    with ender(cluster):
        for pod in cluster.pods():
            message = '0/3 nodes are available: persistentvolumeclaim "missing" not found.'
            cluster.driver.unschedulable(pod, message)
        error = launched.ended()
    assert isinstance(error, TrainingRefused)
    assert "correct compute.kubernetes.claim" in str(error)


def test_deletion_that_never_ends_does_not_hold_the_launch(cluster: Cluster, planned: Planned, tmp_path: Path) -> None:
    lines: list[Launch] = []
    lines.append(Launch(cluster, planned, cluster.settings(tmp_path), now=once_told(lines, "leaving")))
    cluster.run_all()  # and nobody ends them
    (jobset,) = cluster.jobsets()
    cluster.driver.wait_until(lambda: any("running" in line for line in lines[0].lines), "its start")
    cluster.api.delete("JobSet", cluster.namespace, jobset["metadata"]["name"], propagationPolicy="Foreground")
    error = lines[0].ended()
    assert isinstance(error, TrainingRefused)
    assert "Somebody deleted it" in str(error)


def test_no_node_for_too_long_is_a_failure_that_a_retry_may_mend(
    cluster: Cluster, planned: Planned, tmp_path: Path
) -> None:
    settings = cluster.settings(tmp_path, instance_type="p5en.48xlarge")
    queue(cluster, {"cpu": "1000", "memory": "10Ti", "nvidia.com/gpu": "16", "vpc.amazonaws.com/efa": "64"})
    lines: list[Launch] = []
    lines.append(Launch(cluster, planned, settings, now=once_told(lines, "no capacity: pod")))
    with ender(cluster):
        error = lines[0].ended()
    assert type(error) is RuntimeError
    assert "no capacity" in str(error)
    assert "spot_first" in str(error)
    cluster.driver.wait_until(lambda: not cluster.jobsets(), "the end of the JobSet")


def test_quota_that_never_comes_is_told_in_the_queues_words(cluster: Cluster, planned: Planned, tmp_path: Path) -> None:
    queue(cluster, {"cpu": "1", "memory": "1Gi"})
    lines: list[Launch] = []
    lines.append(Launch(cluster, planned, cluster.settings(tmp_path), now=once_told(lines, "couldn't assign flavors")))
    error = lines[0].ended()
    assert isinstance(error, TrainingRefused)
    assert "couldn't assign flavors" in str(error)
    assert cluster.driver.pods(cluster.namespace) == []


def forbid(cluster: Cluster, kind: str, name: str, **spec: Any) -> None:
    metadata = {"name": name, "namespace": cluster.namespace}
    cluster.api.create({"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": spec})


FORBIDDEN = {
    "a quota of less than the gang": (
        "ResourceQuota",
        {"hard": {"requests.memory": "5Gi"}},
        "raise that ResourceQuota",
    ),
    "a limit of less than a container": (
        "LimitRange",
        {"limits": [{"type": "Container", "max": {"cpu": "100m"}}]},
        "raise that LimitRange",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FORBIDDEN)
def test_pods_that_are_forbidden_end_the_launch(
    cluster: Cluster, planned: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("k8s.follow.NO_PROGRESS_S", 0.3)
    kind, spec, advice = FORBIDDEN[name]
    forbid(cluster, kind, "small", **spec)
    launched = Launch(cluster, planned, cluster.settings(tmp_path))
    with ender(cluster):
        error = launched.ended()
    assert isinstance(error, TrainingRefused), error
    assert "forbidden: pods" in str(error)
    assert advice in str(error)


def test_a_quota_that_others_fill_is_waited_for(cluster: Cluster, planned: Planned, tmp_path: Path) -> None:
    forbid(cluster, "ResourceQuota", "small", hard={"pods": "2"})
    container = {"name": "other", "image": "other"}
    other = {"metadata": {"name": "other", "namespace": cluster.namespace}, "spec": {"containers": [container]}}
    cluster.api.create({"apiVersion": "v1", "kind": "Pod", **other})
    lines: list[Launch] = []
    lines.append(Launch(cluster, planned, cluster.settings(tmp_path), now=once_told(lines, "over quota")))
    with ender(cluster):
        error = lines[0].ended()
    assert type(error) is RuntimeError, error
    assert "exceeded quota: small, requested: pods=1, used: pods=2, limited: pods=2" in str(error)


def test_a_queue_that_is_not_there_is_named(
    cluster: Cluster, planned: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("k8s.follow.NO_PROGRESS_S", 0.3)
    owner = cluster.connect(as_owner=True)  # whom no policy bounds
    error = Launch(cluster, planned, cluster.settings(tmp_path, queue="trainin"), owner).ended()
    assert isinstance(error, TrainingRefused), error
    assert "LocalQueue trainin doesn't exist" in str(error)
    assert "compute.kubernetes.queue" in str(error)
    assert "Free quota" not in str(error)


def test_the_head_of_a_strict_queue_is_named(cluster: Cluster, planned: Planned, tmp_path: Path) -> None:
    """Kueue says nothing of those behind it."""
    queue(cluster, {"cpu": "1", "memory": "1Gi"}, "StrictFIFO")
    compute = Compute(nodes=2, kubernetes=cluster.settings(tmp_path))
    head = example("head", str(tmp_path), compute, Training(grace_s=5, timeout_s=600))
    cluster.api.create(render(head)[0])
    first = lambda: next(iter(cluster.api.list("Workload", cluster.namespace)[0]), {}).get("status")  # noqa: E731
    cluster.driver.wait_until(first, "Kueue's word of the head")
    launched: list[Launch] = []
    launched.append(Launch(cluster, planned, cluster.settings(tmp_path), now=once_told(launched, "behind")))
    error = launched[0].ended()
    assert f"it waits behind {head.name}" in str(error)
    assert "couldn't assign flavors" in str(error), "why that one waits"


@pytest.mark.parametrize(
    ("reason", "words"),
    [("PodsReadyTimeout", "no capacity: it had quota"), ("Preempted", "restarting: Kueue pre-empted it")],
)
def test_quota_that_was_taken_back_is_no_refusal(
    cluster: Cluster, planned: Planned, tmp_path: Path, reason: str, words: str
) -> None:
    """Whatever the moment at which `start_timeout_s` runs out, in the queue's back-off too."""
    queue(cluster, {"cpu": "1", "memory": "1Gi"})
    lines: list[Launch] = []
    lines.append(Launch(cluster, planned, cluster.settings(tmp_path), now=once_told(lines, words)))
    (workload,) = cluster.driver.wait_until(lambda: cluster.api.list("Workload", cluster.namespace)[0], "its Workload")
    evicted = {"type": "Evicted", "status": "True", "reason": reason, "message": "gone", "lastTransitionTime": STAMP}
    name = workload["metadata"]["name"]

    def evict() -> bool:
        (now,) = cluster.api.list("Workload", cluster.namespace)[0]
        conditions = (now.get("status") or {}).get("conditions", [])
        if not conditions:
            return False
        status = {"status": {"conditions": [*conditions, evicted]}}
        cluster.api.patch("Workload", cluster.namespace, name, status, "status")
        return True

    cluster.driver.wait_until(evict, "its eviction")
    error = lines[0].ended()
    assert type(error) is RuntimeError
    assert words in str(error)
    assert "un it again later" in str(error)


def test_gang_with_checkpoints_is_not_refused_for_waiting(cluster: Cluster, planned: Planned, tmp_path: Path) -> None:
    store, plan = planned
    (store.path(f"iterations/{plan.iteration}/training") / "checkpoints" / "step-2").mkdir(parents=True)
    queue(cluster, {"cpu": "1", "memory": "1Gi"})
    lines: list[Launch] = []
    lines.append(Launch(cluster, planned, cluster.settings(tmp_path), now=once_told(lines, "couldn't assign flavors")))
    error = lines[0].ended()
    assert type(error) is RuntimeError
    assert "queued: " in str(error)


@pytest.fixture
def progress(tmp_path: Path) -> GangProgress:
    return GangProgress(lambda: {str(path) for pattern in CHECKPOINTS for path in tmp_path.glob(pattern)})


def test_starts_without_a_checkpoint_come_to_an_end(progress: GangProgress) -> None:
    assert [progress.started(starts) for starts in range(FRUITLESS + 1)] == [True] * FRUITLESS + [False]


def test_looks_between_two_starts_count_for_nothing(progress: GangProgress) -> None:
    assert all(progress.started(3) for _ in range(5 * FRUITLESS))


def test_a_newer_checkpoint_begins_the_count_anew(progress: GangProgress, tmp_path: Path) -> None:
    for starts in range(5 * FRUITLESS):
        if starts % (FRUITLESS - 1) == 0:
            (tmp_path / "checkpoints" / f"step-{starts:06}").mkdir(parents=True)
        assert progress.started(starts)


def test_the_checkpoints_of_nemo_rl_count(progress: GangProgress, tmp_path: Path) -> None:
    for starts in range(5 * FRUITLESS):
        if starts % (FRUITLESS - 1) == 0:
            (tmp_path / "nemo" / "0123" / "checkpoints" / f"step_{starts}").mkdir(parents=True)
        assert progress.started(starts)


def test_progress_ignores_starts_before_this_launch(progress: GangProgress) -> None:
    assert progress.started(5 * FRUITLESS)
    assert not progress.started(6 * FRUITLESS)


@pytest.mark.parametrize("rival", ["its pods are still alive", "another launch has closed the attempt"])
def test_gang_is_not_made_where_another_launch_is_ahead(
    rival: str, cluster: Cluster, planned: tuple[Store, TrainingPlan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, plan = planned
    settings = cluster.settings(tmp_path)
    attempts = GangAttempts(store, plan.iteration)
    path = store.path("iterations", plan.iteration, "training", "plan.json")
    attempt = attempts.current(0.0, lambda number: gang_of(plan, path, settings, number).name)
    gang = gang_of(plan, path, settings, attempt.attempt)
    follower = GangFollower(
        cluster.connect(), gang, attempts, attempt, Hooks(log=lambda line: None, sleep=lambda s: None), lambda _: True
    )
    alive: list[PodSeen] = []
    if rival == "its pods are still alive":
        alive.append(running_pod(attempt.attempt))
    else:
        attempts.close(attempt.model_copy(update={"closed_at": 1.0, "outcome": "crashed"}))
    monkeypatch.setattr(follower, "_pods", lambda: alive)
    assert follower._make(late=False).cause == ("leaving" if rival == "its pods are still alive" else "gone")
    assert cluster.api.find("JobSet", cluster.namespace, gang.name) is None


def running_pod(attempt: int) -> PodSeen:
    """A pod of that attempt that runs."""
    return POD._replace(attempt=attempt)
