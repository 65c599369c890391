"""Dagster and the cluster: the training asset on it, and the gang that a cancelled run left."""

import threading
from pathlib import Path

import dagster as dg
import pytest
import yaml

from assets.graph import ASSETS
from assets.resources import ITERATION_TAG, Deployment, records
from evals.measurements import EvalReport
from evals.suites import pin as evaluation_pin
from evals.suites import suites
from jobs.definitions import definitions
from jobs.gangs import delete_orphaned_gang
from k8s.attempts import GangAttempts
from k8s.ledger import Ledger
from pipeline.core.iteration import Iteration
from pipeline.core.layout import EVAL_PLAN, EVAL_REPORT, LATEST, RESULT
from pipeline.core.storage import DatasetRef, Store
from pipeline.demo.suite import ensure_suite
from pipeline.recipe.pinning import pin
from pipeline.recipe.suites import ArithmeticSuite
from pipeline.traces.records import GovernedTraces
from pipeline.training.plan import TrainingPlan
from pipeline.training.result import Goodput, Health, TrainingResult
from tests.pipeline.training.plans import make_plan

from .conftest import ROOM, Cluster, Launch, Robot, ender, queue
from .evaluations import SECTION, noisy, published

EMBEDDED = Path(__file__).parents[2] / "jobs" / "recipes" / "embedded.yaml"


@pytest.mark.slow
@pytest.mark.pods
def test_training_asset_runs_on_the_recipes_cluster(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    store, plan = make_plan(tmp_path / "data")
    dataset = DatasetRef(uri="d", rows=1, digest="d")
    iteration = Iteration(
        id=plan.iteration, number=0, model_name="m", champion=plan.base, dataset=dataset, recipe_digest=""
    )
    traces = GovernedTraces(iteration=iteration, source="s", days=(), seen=0, admitted=0, rejected={})
    store.write(iteration.path("traces.json"), traces)
    store.write(LATEST, iteration)
    placed = cluster.settings(tmp_path).model_dump(mode="json", exclude_defaults=True)
    settings = Deployment(
        recipe_path=str(EMBEDDED),
        overrides=[f"data_root={tmp_path / 'data'}", f"compute.kubernetes={yaml.safe_dump(placed)}"],
    )
    pin(store, iteration, settings.recipe())
    (suite,) = settings.recipe().evaluation.suites
    assert isinstance(suite, ArithmeticSuite)
    ensure_suite(store, suite, settings.recipe().evaluation.seed)
    resources = {"deployment": settings, "io_manager": records}
    with cluster.kubelet(tmp_path / "logs"), dg.instance_for_test() as instance:
        result = dg.materialize(ASSETS, selection=["policy_checkpoint"], resources=resources, instance=instance)
        logged = [entry.user_message for entry in instance.all_logs(result.run_id)]
    assert result.success
    (event,) = result.get_asset_materialization_events()
    shown = {name: value.value for name, value in event.step_materialization_data.materialization.metadata.items()}
    assert (shown["steps"], shown["launches"], shown["attempts"]) == (6, 1, 1)
    assert sum("step 3/6" in message for message in logged) == 1
    assert any("running: 1 pod" in message for message in logged)
    account = store.read(iteration.path("training", "ledger.json"), Ledger)
    assert account is not None
    assert account.measured
    assert account.requests > 0


@pytest.mark.variant
@pytest.mark.slow
@pytest.mark.pods
def test_the_evaluation_asset_runs_on_the_recipes_cluster(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    store = Store(tmp_path / "data")
    plan = published(store, noisy(tmp_path / "candidate"))
    iteration = plan.iteration
    store.path(plan.path(EVAL_PLAN)).unlink()
    trained = TrainingResult(
        iteration=iteration.id, plan_digest="p", checkpoint=plan.candidate, metrics=(), seconds=1, attempts=1,
        resumed_from=(), health=Health(), goodput=Goodput(total_s=1, productive_s=1, badput_s={}), preemptions=(),
        engine="trl",
    )  # fmt: skip
    traces = GovernedTraces(iteration=iteration, source="s", days=(), seen=0, admitted=0, rejected={})
    store.write(iteration.path("traces.json"), traces)
    store.write(iteration.path(RESULT), trained)
    store.write(LATEST, iteration)
    placed = cluster.settings(tmp_path).model_dump(mode="json", exclude_defaults=True)
    asked = yaml.safe_dump(SECTION.model_dump(mode="json"), default_flow_style=True, width=10_000).strip()
    overrides = [f"data_root={tmp_path / 'data'}", f"compute.kubernetes={yaml.safe_dump(placed)}"]
    overrides += ["compute.evaluation={}", f"evaluation={asked}"]
    settings = Deployment(recipe_path=str(EMBEDDED), overrides=overrides)
    pin(store, iteration, settings.recipe())
    evaluation_pin(store, iteration.path(), suites(store, SECTION))
    resources = {"deployment": settings, "io_manager": records}
    with cluster.kubelet(tmp_path / "logs"), dg.instance_for_test() as instance:
        result = dg.materialize(ASSETS, selection=["eval_report"], resources=resources, instance=instance)
        logged = [entry.user_message for entry in instance.all_logs(result.run_id)]
        run = instance.get_run_by_id(result.run_id)
    assert result.success
    assert run is not None and run.tags[ITERATION_TAG] == iteration.id
    (event,) = result.get_asset_materialization_events()
    shown = event.step_materialization_data.materialization.metadata
    report = store.read(iteration.path(EVAL_REPORT), EvalReport)
    assert report is not None and shown["evidence digest"].value == report.bundle.digest
    assert any("eval-" in message and "1 x " in message for message in logged), "a pod of the cluster"


class Killed(BaseException):
    """The launcher's end, which tells nobody."""


def leave_a_gang(cluster: Cluster, planned: tuple[Store, TrainingPlan], root: Path, held: bool = False) -> None:
    ended = threading.Event()

    def sleep(seconds: float) -> None:
        if ended.wait(seconds):
            raise Killed

    launched = Launch(cluster, planned, cluster.settings(root), sleep=sleep)
    if held:
        words = "couldn't assign flavors"
        cluster.driver.wait_until(lambda: any(words in line for line in launched.lines), "the queue's word of it")
    else:
        cluster.run_all()
    ended.set()
    assert isinstance(launched.ended(), Killed)


def clear_away(
    cluster: Cluster, iteration: str, root: Path, instance: dg.DagsterInstance, held_only: bool = False
) -> list[str]:
    """What the job says."""
    placed = yaml.safe_dump(cluster.settings(root).model_dump(mode="json", exclude_defaults=True))
    overrides = [f"data_root={root / 'data'}", f"compute.kubernetes={placed}"]
    done = delete_orphaned_gang.execute_in_process(
        run_config={"ops": {"delete_gang": {"config": {"iteration": iteration, "held_only": held_only}}}},
        resources={"deployment": Deployment(recipe_path=str(EMBEDDED), overrides=overrides)},
        instance=instance,
    )
    return [entry.user_message for entry in instance.all_logs(done.run_id)]


@pytest.mark.slow
def test_the_gang_of_a_cancelled_run_goes_once_nobody_follows_it(
    cluster: Cluster, planned: tuple[Store, TrainingPlan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    store, plan = planned
    leave_a_gang(cluster, planned, tmp_path)
    (jobset,) = cluster.jobsets()
    with dg.instance_for_test() as instance:
        job = definitions.resolve_job_def("preference_tuning")
        tags = {ITERATION_TAG: plan.iteration}
        follower = instance.create_run_for_job(job, tags=tags, status=dg.DagsterRunStatus.STARTED)
        lines = clear_away(cluster, plan.iteration, tmp_path, instance)
        assert any("it stays" in line for line in lines)
        assert cluster.jobsets()
        instance.report_run_canceled(follower)
        with ender(cluster):
            lines = clear_away(cluster, plan.iteration, tmp_path, instance)
            cluster.driver.wait_gone("JobSet", cluster.namespace, jobset["metadata"]["name"])
        assert any("its run was cancelled" in line for line in lines)
        lines = clear_away(cluster, plan.iteration, tmp_path, instance)
        assert any("No gang was left" in line for line in lines)
    assert [attempt.outcome for attempt in GangAttempts(store, plan.iteration).all()] == ["deleted"]
    with Robot(cluster, planned):
        assert Launch(cluster, planned, cluster.settings(tmp_path)).ended() is None
    assert [attempt.outcome for attempt in GangAttempts(store, plan.iteration).all()] == ["deleted", "succeeded"]


@pytest.mark.slow
def test_a_held_gang_that_nobody_follows_leaves_the_queue(
    cluster: Cluster, planned: tuple[Store, TrainingPlan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the head of a strict queue it would block all others for ever."""
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    store, plan = planned
    queue(cluster, {"cpu": "1", "memory": "1Gi"}, "StrictFIFO")
    leave_a_gang(cluster, planned, tmp_path, held=True)
    (jobset,) = cluster.jobsets()
    with dg.instance_for_test() as instance:
        lines = clear_away(cluster, plan.iteration, tmp_path, instance, held_only=True)
        cluster.driver.wait_gone("JobSet", cluster.namespace, jobset["metadata"]["name"])
        assert any("held in its queue" in line for line in lines)
    assert [attempt.outcome for attempt in GangAttempts(store, plan.iteration).all()] == ["deleted"]
    queue(cluster, ROOM)
    with Robot(cluster, planned):
        assert Launch(cluster, planned, cluster.settings(tmp_path)).ended() is None


@pytest.mark.slow
def test_a_running_gang_that_nobody_follows_stays(
    cluster: Cluster, planned: tuple[Store, TrainingPlan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    leave_a_gang(cluster, planned, tmp_path)
    with dg.instance_for_test() as instance:
        clear_away(cluster, planned[1].iteration, tmp_path, instance, held_only=True)
    (jobset,) = cluster.jobsets()
    assert "deletionTimestamp" not in jobset["metadata"]
    with Robot(cluster, planned):
        assert Launch(cluster, planned, cluster.settings(tmp_path)).ended() is None
    assert [each.outcome for each in GangAttempts(planned[0], planned[1].iteration).all()] == ["succeeded"]
