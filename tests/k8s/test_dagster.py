"""Dagster and the cluster: training and evaluation as real pods of their assets, and the gangs that runs have left."""

from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from assets.graph import ASSETS
from assets.resources import ITERATION_TAG, Deployment, records
from evals.records import EvalReport
from evals.suites import pin as evaluation_pin
from evals.suites import suites
from jobs.definitions import definitions
from jobs.gangs import delete_orphaned_gang
from k8s.attempts import GangAttempts, Ledger
from k8s.follow import Hooks
from k8s.launch import Task
from pipeline.core.iteration import Iteration
from pipeline.core.layout import ATTEMPTS, EVAL_ATTEMPTS, EVAL_PLAN, EVAL_REPORT, LATEST, RESULT
from pipeline.core.storage import DatasetRef, Store
from pipeline.demo.suite import ensure_suite
from pipeline.recipe.pinning import pin
from pipeline.recipe.suites import ItemsSuite
from pipeline.traces.records import GovernedTraces
from pipeline.training.result import Goodput, Health, TrainingResult
from tests.fork_server import ForkServer
from tests.pipeline.training.plans import folder, make_plan

from .evaluations import SECTION, noisy, published, task
from .world import Killed, Planned, Processes, World, cluster_settings, kill, overrides

EMBEDDED = str(Path(__file__).parents[2] / "jobs" / "recipes" / "embedded.yaml")


def materialized(
    world: World, asset: str, deployment: Deployment, patch: pytest.MonkeyPatch
) -> tuple[dict[str, Any], list[str], str]:
    """What the asset shows, what its run logged, and the run's tag of the iteration."""
    for module in ("cluster", "preflight"):
        patch.setattr(f"assets.{module}.connect", lambda kubeconfig: world.client())
    patch.setattr("assets.cluster.Hooks", partial(Hooks, sleep=world.sleep))
    resources = {"deployment": deployment, "io_manager": records}
    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize(ASSETS, selection=[asset], resources=resources, instance=instance)
        logged = [entry.user_message for entry in instance.all_logs(result.run_id)]
        run = instance.get_run_by_id(result.run_id)
    assert result.success and run is not None
    (event,) = result.get_asset_materialization_events()
    shown = event.step_materialization_data.materialization.metadata
    return {name: value.value for name, value in shown.items()}, logged, run.tags[ITERATION_TAG]


def begin(store: Store, iteration: Iteration) -> None:
    traces = GovernedTraces(iteration=iteration, source="s", days=())
    store.write(iteration.path("traces.json"), traces)
    store.write(LATEST, iteration)


@pytest.mark.slow
def test_the_training_asset_runs_on_the_recipes_cluster(
    tmp_path: Path, fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real trainer as the pod of its gang, evicted after its first checkpoint and started again."""
    store, plan = make_plan(tmp_path / "data")
    dataset = DatasetRef(uri="d", rows=1, digest="d")
    iteration = Iteration(
        id=plan.iteration, number=0, model_name="m", champion=plan.base, dataset=dataset, recipe_digest=""
    )
    begin(store, iteration)
    deployment = Deployment(recipe_path=EMBEDDED, overrides=overrides(tmp_path / "data"))
    pin(store, iteration, deployment.recipe())
    (suite,) = deployment.recipe().evaluation.suites
    assert isinstance(suite, ItemsSuite)
    ensure_suite(store, suite, deployment.recipe().evaluation.seed)
    checkpoints = folder(store, plan) / "checkpoints"
    with Processes(tmp_path, fork_server, evict=lambda: any(checkpoints.glob("step-*"))) as world:
        shown, logged, tag = materialized(world, "policy_checkpoint", deployment, monkeypatch)
    assert world.evicted and tag == plan.iteration
    assert (shown["steps"], shown["record"]["attempts"]) == (6, 2)
    assert sum("step 3/6" in message for message in logged) == 1
    assert any("running: 1 pod" in message for message in logged)
    trained = store.read(iteration.path(RESULT), TrainingResult)
    account = store.read(iteration.path("training", "ledger.json"), Ledger)
    assert trained is not None and [(each.cause, each.lost_steps) for each in trained.preemptions] == [("SIGTERM", 0)]
    assert account is not None and account.measured and account.restarts == 1


@pytest.mark.variant
@pytest.mark.slow
def test_the_evaluation_asset_runs_on_the_recipes_cluster(
    tmp_path: Path, fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "data")
    plan = published(store, noisy(tmp_path / "candidate"))
    iteration = plan.iteration
    store.path(plan.path(EVAL_PLAN)).unlink()
    trained = TrainingResult(
        iteration=iteration.id, plan_digest="p", checkpoint=plan.candidate, metrics=(), seconds=1, attempts=1,
        resumed_from=(), health=Health(), goodput=Goodput(total_s=1, productive_s=1, badput_s={}), preemptions=(),
    )  # fmt: skip
    begin(store, iteration)
    store.write(iteration.path(RESULT), trained)
    asked = yaml.safe_dump(SECTION.model_dump(mode="json"), default_flow_style=True, width=10_000).strip()
    given = [*overrides(tmp_path / "data"), "compute.evaluation={}", f"evaluation={asked}"]
    deployment = Deployment(recipe_path=EMBEDDED, overrides=given)
    pin(store, iteration, deployment.recipe())
    evaluation_pin(store, iteration.path(), suites(store, SECTION))
    with Processes(tmp_path, fork_server, evict=lambda: False) as world:
        shown, logged, tag = materialized(world, "eval_report", deployment, monkeypatch)
    report = store.read(iteration.path(EVAL_REPORT), EvalReport)
    assert report is not None and shown["record"]["bundle"]["digest"] == report.bundle.digest
    assert any("eval-" in message and "1 x " in message for message in logged), "a pod of the cluster"
    assert tag == iteration.id


def clear_away(world: World, iteration: str, root: Path, instance: dg.DagsterInstance, held_only: bool) -> list[str]:
    """What the job says."""
    given = [*overrides(root / "data"), "compute.evaluation={}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("assets.cluster.connect", lambda kubeconfig: world.client())
        done = delete_orphaned_gang.execute_in_process(
            run_config={"ops": {"delete_gang": {"config": {"iteration": iteration, "held_only": held_only}}}},
            resources={"deployment": Deployment(recipe_path=EMBEDDED, overrides=given)},
            instance=instance,
        )
    return [entry.user_message for entry in instance.all_logs(done.run_id)]


def left(what: str, planned: Planned, root: Path) -> tuple[Task[Any], str, GangAttempts]:
    """A training or an evaluation, its iteration, its attempts."""
    if what == "training":
        return planned.task(), planned.plan.iteration, GangAttempts(planned.store, planned.plan.iteration, ATTEMPTS)
    store = Store(root / "data")
    plan = published(store, noisy(root / "candidate"))
    attempts = GangAttempts(store, plan.iteration.id, EVAL_ATTEMPTS)
    return task(store, plan, cluster_settings()), plan.iteration.id, attempts


def end(world: World, given: Task[Any]) -> None:
    world.script += [kill]
    assert isinstance(world.fails(given), Killed)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["training", "evaluation"])
def test_the_gang_of_a_cancelled_run_goes_once_nobody_follows_it(planned: Planned, tmp_path: Path, what: str) -> None:
    world = World()
    given, iteration, attempts = left(what, planned, tmp_path)
    world.script += [world.run]
    end(world, given)
    component = {"training": "trainer", "evaluation": "evaluation"}[what]
    assert world.gangs()[0]["metadata"]["labels"]["app.kubernetes.io/component"] == component
    with dg.DagsterInstance.ephemeral() as instance:
        job = definitions.resolve_job_def("preference_tuning")
        follower = instance.create_run_for_job(job, tags={ITERATION_TAG: iteration}, status=dg.DagsterRunStatus.STARTED)
        for words, gangs in (("it stays", 1), ("its run was cancelled", 0), ("No gang was left", 0)):
            lines = clear_away(world, iteration, tmp_path, instance, held_only=False)
            assert any(words in line for line in lines), lines
            assert len(world.gangs()) == gangs
            instance.report_run_canceled(follower)
    assert [attempt.outcome for attempt in attempts.all()] == ["deleted"]


@pytest.mark.slow
@pytest.mark.parametrize("held", [True, False])
def test_of_gangs_that_nobody_follows_the_held_leave_the_queue(planned: Planned, tmp_path: Path, held: bool) -> None:
    """At the head of a strict queue it would block all others for ever. One that runs stays."""
    world = World()
    given, iteration, attempts = left("training", planned, tmp_path)
    world.script += [world.hold if held else world.run]
    end(world, given)
    with dg.DagsterInstance.ephemeral() as instance:
        lines = clear_away(world, iteration, tmp_path, instance, held_only=True)
    assert any("held in its queue" in line for line in lines) == held
    assert len(world.gangs()) == (0 if held else 1)
    assert [attempt.outcome for attempt in attempts.all()] == (["deleted"] if held else [""])
    world.script = [*world.trains(planned)] if held else [*world.trains(planned)[1:]]
    assert world.launch(given)
