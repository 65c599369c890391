"""A real evaluation as a pod: killed and evicted on its way, and the same evidence in the end."""

import base64
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml

from assets.cluster import abandon_gang
from assets.resources import Deployment
from evals.measurements import EvalReport
from k8s.attempts import GangAttempts
from k8s.evaluation import EvaluationRefused
from k8s.follow import Hooks
from k8s.task import Task, delete, run
from pipeline.core import layout
from pipeline.core.storage import Store
from pipeline.recipe import Evaluation
from pipeline.recipe.compute import EvaluationPod
from pipeline.serving.node_cache import CACHE, SIZE
from tests.evals.judging import JUDGE, comparisons, judge
from tests.pipeline.rewards.judge.endpoint import KEY, Request, Said, Server, serving

from .conftest import ROOM, Cluster, ender, queue
from .evaluations import SECTION, judged, keys, noisy, published, task

ROOT = Path(__file__).parents[2]
STEPS_S = 600
"""For each part: only a hang should fail."""


class Evaluating(threading.Thread):
    """A launch of an evaluation in a thread of its own."""

    def __init__(self, cluster: Cluster, given: Task[EvalReport], **hooks: object) -> None:
        super().__init__(daemon=True)
        self.lines: list[str] = []
        self.report: EvalReport | None = None
        self.error: BaseException | None = None
        self._call = (given, cluster.connect(), Hooks(**{"log": self.lines.append, **hooks}))  # type: ignore[arg-type]
        self.start()

    def run(self) -> None:
        try:
            self.report = run(*self._call)
        except BaseException as error:  # whatever it is, the test looks at it
            self.error = error

    def ended(self, within_s: float = STEPS_S) -> BaseException | None:
        self.join(within_s)
        assert not self.is_alive(), self.lines
        return self.error


@pytest.mark.variant
@pytest.mark.slow
@pytest.mark.pods
@pytest.mark.timeout(4 * STEPS_S)
def test_killed_and_evicted_evaluation_asks_nothing_twice(cluster: Cluster, tmp_path: Path) -> None:
    candidate = noisy(tmp_path / "candidate")
    here = Store(tmp_path / "here")
    plan = published(here, candidate)
    command = [sys.executable, "-m", "evals", "run", str(here.path(plan.path(layout.EVAL_PLAN)))]
    subprocess.run(command, check=True, cwd=ROOT)
    undisturbed = here.read(plan.path(layout.EVAL_REPORT), EvalReport)
    assert undisturbed is not None

    store = Store(tmp_path / "data")
    assert published(store, candidate).digest() == plan.digest()
    with cluster.kubelet(tmp_path / "logs") as kubelet:
        cluster.driver.patience_s = STEPS_S
        cache = {CACHE: str(tmp_path / "cache"), SIZE: "1"}
        given = task(store, plan, cluster.settings(tmp_path, env=cache))
        launched = Evaluating(cluster, given)

        def answered(more_than: int) -> None:
            cluster.driver.wait_until(lambda: len(keys(store)) > more_than or not launched.is_alive(), "answers")
            assert launched.is_alive(), launched.lines

        answered(4)
        (pod,) = cluster.pods(1)
        assert cluster.api.evict(cluster.namespace, pod["metadata"]["name"]) == 201
        answered(len(keys(store)))  # of the pod that came instead
        pods = cluster.pods(1)
        kubelet.kill(cluster.namespace, pods[0]["metadata"]["name"])
        error = launched.ended()
        assert error is None, launched.lines

    assert launched.report is not None
    assert launched.report.bundle.digest == undisturbed.bundle.digest
    models = {plan.iteration.champion.digest, plan.candidate.model.digest}
    assert {path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()} == models, "read by digest"
    assert len(keys(store)) == len(set(keys(store))) == len(keys(here))
    outcomes = [attempt.outcome for attempt in GangAttempts(store, plan.iteration.id, layout.EVAL_ATTEMPTS).all()]
    assert outcomes == ["succeeded"]
    assert not GangAttempts(store, plan.iteration.id).all(), "none of the training's"


@pytest.mark.variant
@pytest.mark.slow
@pytest.mark.pods
@pytest.mark.timeout(2 * STEPS_S)
def test_killed_judged_evaluation_judges_nothing_twice(cluster: Cluster, tmp_path: Path) -> None:
    """With weights by digest from its node's cache, and the judge's key from the Secret."""
    preferring, killed, before = judge(0.5), threading.Event(), 16

    def keyed(server: Server, request: Request, place: int) -> Said:
        if request.headers.get("Authorization") != f"Bearer {KEY}":
            return Said(401)
        if len(comparisons(server)) > before:  # in the middle of the pairs the pod waits, and is killed
            killed.wait(STEPS_S)
        return preferring(server, request, place)

    over = {"kind": "judged", "name": "preferred", "over": "arithmetic", "role": "guard"}
    asked = SECTION.model_dump() | {"suites": [SECTION.suites[0].model_dump() | {"items": 48}, over]}
    asked |= {"samples_per_item": 1, "max_completion_tokens": 64, "temperature": 2.0}  # answers of many lengths
    store = Store(tmp_path / "data")
    plan = published(store, noisy(tmp_path / "candidate"), Evaluation.model_validate(asked), JUDGE)
    data = {"JUDGE_API_KEY": base64.b64encode(KEY.encode()).decode()}
    secret = {"metadata": {"name": "endpoints", "namespace": cluster.namespace}, "data": data}
    cluster.api.create({"apiVersion": "v1", "kind": "Secret", **secret})
    settings = cluster.settings(tmp_path, env={CACHE: str(tmp_path / "cache"), SIZE: "1"})

    with serving(keyed) as server, cluster.kubelet(tmp_path / "logs") as kubelet:
        cluster.driver.patience_s = STEPS_S
        pod, addresses = EvaluationPod(secret="endpoints"), {"JUDGE_URL": server.url}
        launched = Evaluating(cluster, task(store, plan, settings, pod, addresses))
        cluster.driver.wait_until(
            lambda: (len(comparisons(server)) > before and judged(store)) or not launched.is_alive(), "judgements"
        )
        assert launched.is_alive(), launched.lines
        answers, kept = keys(store), judged(store)
        kubelet.kill(cluster.namespace, cluster.pods(1)[0]["metadata"]["name"])
        killed.set()
        assert launched.ended() is None, launched.lines
        compared = comparisons(server)

    assert launched.report is not None
    (of_judge,) = launched.report.judged
    assert of_judge.suite == "preferred"
    assert keys(store) == answers, "every answer was there"
    assert judged(store)[: len(kept)] == kept
    assert len(judged(store)) == len(set(judged(store))) > len(kept)
    twice = len(compared) - len(set(compared))
    assert 0 < twice <= 2 * JUDGE.concurrency, "the pairs that were on their way alone, in two orders"
    models = {plan.iteration.champion.digest, plan.candidate.model.digest}
    assert {path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()} == models


@pytest.mark.slow
@pytest.mark.pods
@pytest.mark.timeout(2 * STEPS_S)
def test_evaluation_that_is_refused_is_not_tried_again(cluster: Cluster, tmp_path: Path) -> None:
    store = Store(tmp_path / "data")
    plan = published(store, noisy(tmp_path / "candidate"))
    store.path(plan.path(layout.EVAL_PLAN)).write_text("{}")
    with cluster.kubelet(tmp_path / "logs"), ender(cluster):
        launched = Evaluating(cluster, task(store, plan, cluster.settings(tmp_path)))
        error = launched.ended()
    assert isinstance(error, EvaluationRefused), launched.lines
    assert "refuses the plan" in str(error)


def test_two_launchers_of_an_evaluation_say_the_same(cluster: Cluster, tmp_path: Path) -> None:
    store = Store(tmp_path / "data")
    plan = published(store, noisy(tmp_path / "candidate"))
    given = task(store, plan, cluster.settings(tmp_path, max_restarts=0))
    both = [Evaluating(cluster, given) for _ in range(2)]
    with ender(cluster):
        cluster.driver.finish(cluster.run_all(1)[0], 1)
        errors = [launched.ended() for launched in both]
    assert [type(error) for error in errors] == [RuntimeError, RuntimeError], errors
    attempts = GangAttempts(store, plan.iteration.id, layout.EVAL_ATTEMPTS).all()
    assert [(each.attempt, each.outcome) for each in attempts] == [(1, "crashed")]


class Killed(BaseException):
    """The launcher's end, which tells nobody."""


def test_evaluation_left_in_the_cluster_is_deleted(cluster: Cluster, tmp_path: Path) -> None:
    ended = threading.Event()

    def sleep(seconds: float) -> None:
        if ended.wait(seconds):
            raise Killed

    store = Store(tmp_path / "data")
    plan = published(store, noisy(tmp_path / "candidate"))
    given = task(store, plan, cluster.settings(tmp_path))
    launched = Evaluating(cluster, given, sleep=sleep)
    (pod,) = cluster.run_all(1)
    assert pod["metadata"]["labels"]["app.kubernetes.io/component"] == "evaluation"
    ended.set()
    assert isinstance(launched.ended(), Killed)
    (jobset,) = cluster.jobsets()
    lines: list[str] = []
    with ender(cluster):
        deleted = delete(given, cluster.connect(), Hooks(log=lines.append), "its run was cancelled")
        cluster.driver.wait_gone("JobSet", cluster.namespace, jobset["metadata"]["name"])
    assert deleted is not None
    assert any("its run was cancelled" in line for line in lines)
    assert delete(given, cluster.connect(), Hooks(log=lines.append), "again") is None


def test_gang_that_its_queue_lets_go_meanwhile_stays(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look that saw it held and its deletion."""
    ended, lines = threading.Event(), list[str]()

    def sleep(seconds: float) -> None:
        if ended.wait(seconds):
            raise Killed

    store = Store(tmp_path / "data")
    given = task(store, published(store, noisy(tmp_path / "candidate")), cluster.settings(tmp_path))
    queue(cluster, {"cpu": "1", "memory": "1Gi"})
    launched = Evaluating(cluster, given, sleep=sleep)
    cluster.driver.wait_until(
        lambda: any("assign flavors" in line for line in launched.lines), "the queue's word of it"
    )
    ended.set()
    assert isinstance(launched.ended(), Killed)
    client = cluster.connect()
    delete_object = client.delete

    def late(*args: str, **options: str) -> bool:
        queue(cluster, ROOM)
        cluster.pods(1)
        return delete_object(*args, **options)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(client, "delete", late)
    assert delete(given, client, Hooks(log=lines.append), "no run follows it", held_only=True) is None
    (jobset,) = cluster.jobsets()
    assert "deletionTimestamp" not in jobset["metadata"]
    assert given.attempts.unfinished() is not None


def test_cancelled_run_takes_its_evaluation_along(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the job of the sensor `gang_orphaned` does it, which knows the iteration alone."""
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    store = Store(tmp_path / "data")
    plan, settings = published(store, noisy(tmp_path / "candidate")), cluster.settings(tmp_path)
    launched = Evaluating(cluster, task(store, plan, settings), sleep=lambda _: (_ for _ in ()).throw(Killed()))
    assert isinstance(launched.ended(), Killed)
    placed = yaml.safe_dump(settings.model_dump(mode="json", exclude_defaults=True))
    overrides = [f"data_root={tmp_path / 'data'}", f"compute.kubernetes={placed}", "compute.evaluation={}"]
    deployment = Deployment(recipe_path=str(ROOT / "jobs" / "recipes" / "embedded.yaml"), overrides=overrides)
    (jobset,) = cluster.jobsets()
    with ender(cluster):
        name = abandon_gang(deployment, plan.iteration.id, "its run was cancelled", lambda line: None)
        cluster.driver.wait_gone("JobSet", cluster.namespace, jobset["metadata"]["name"])
    assert name == jobset["metadata"]["name"]
