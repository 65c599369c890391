"""How training and evaluation reach a cluster: the check before a launch, and the launch with its live lines."""

from collections.abc import Callable
from pathlib import Path

import dagster as dg

from assets.environment import environment
from assets.gate import gate_refusals
from assets.metadata import table
from assets.resources import ITERATION_TAG, Deployment
from evals.records import EvalPlan, EvalReport
from evals.suites import Suite
from k8s.attempts import LaunchAttempt
from k8s.client import connect
from k8s.follow import Hooks
from k8s.launch import Task, check_launch, delete, evaluation_task, run, training_task
from pipeline.core import layout
from pipeline.recipe import Recipe
from pipeline.training.launch import training_faults
from pipeline.training.plan import TrainingPlan
from pipeline.training.result import TrainingResult


def train_on_cluster(
    context: dg.AssetExecutionContext, deployment: Deployment, plan: TrainingPlan
) -> TrainingResult | None:
    """Launch the plan's gang, or follow the one that is there, to its result; None where nothing is to be trained."""
    if plan.decision.method == "none":
        return None
    settings = deployment.recipe().compute.kubernetes
    assert settings is not None, "only a recipe with compute.kubernetes comes here"
    context.instance.add_run_tags(context.run_id, {ITERATION_TAG: plan.iteration})  # whose gang: `jobs.sensors` asks
    url = environment().judge_url
    if plan.scorers is not None and plan.scorers.ask_judge and not (url or settings.env.get("JUDGE_URL")):
        raise ValueError("A judge scores the completions of this training, and no endpoint is set: set JUDGE_URL.")
    addresses = {"JUDGE_URL": url} if url else {}
    hooks = Hooks(log=context.log.info, cancelled=lambda: _cancelled(context))
    task = training_task(deployment.store(), plan, settings, addresses)
    return run(task, connect(environment().kubeconfig), hooks)


def evaluate_on_cluster(context: dg.AssetExecutionContext, deployment: Deployment, plan: EvalPlan) -> EvalReport:
    """Launch the evaluation of a published plan, or follow the one that is there, to its report.

    A crash is asked to be tried again, as often as a training's; what no retry mends fails the step for good.
    """
    context.instance.add_run_tags(context.run_id, {ITERATION_TAG: plan.iteration.id})  # whose: `jobs.sensors` asks
    hooks = Hooks(log=context.log.info, cancelled=lambda: _cancelled(context))
    try:
        return run(_evaluation(deployment, plan), connect(environment().kubeconfig), hooks)
    except ValueError as refusal:
        raise dg.Failure(str(refusal), allow_retries=False) from refusal
    except RuntimeError as error:
        raise dg.RetryRequested(max_retries=2, seconds_to_wait=5) from error


def _evaluation(deployment: Deployment, plan: EvalPlan) -> Task[EvalReport]:
    store, asked = deployment.store(), environment()
    addresses = {"JUDGE_URL": asked.judge_url, "SERVING_URL": asked.serving.endpoint.url}
    return evaluation_task(
        store,
        plan.iteration.id,
        plan.digest(),
        deployment.recipe().compute,
        lambda: store.read(plan.path(layout.EVAL_REPORT), EvalReport),
        {name: value for name, value in addresses.items() if value},
    )


def abandon_gang(
    deployment: Deployment, iteration: str, why: str, log: Callable[[str], None], held_only: bool = False
) -> str:
    """Take what an iteration trains and evaluates out of the cluster. Its names; "" when no launch left any.

    `held_only`: only what a queue holds.
    """
    compute, store = deployment.recipe().compute, deployment.store()
    plan = store.read(layout.iteration(iteration, layout.PLAN), TrainingPlan)
    eval_plan = store.read(layout.iteration(iteration, layout.EVAL_PLAN), EvalPlan)
    if compute.kubernetes is None or (plan is None and eval_plan is None):
        return ""
    client, hooks = connect(environment().kubeconfig), Hooks(log=log)
    abandoned_gangs: list[LaunchAttempt | None] = []
    if plan is not None:
        task = training_task(store, plan, compute.kubernetes)
        abandoned_gangs.append(delete(task, client, hooks, why, held_only))
    if eval_plan is not None and compute.evaluation is not None:
        abandoned_gangs.append(delete(_evaluation(deployment, eval_plan), client, hooks, why, held_only))
    return ", ".join(gang.name for gang in abandoned_gangs if gang is not None)


def launchable(
    recipe: Recipe, plan: TrainingPlan, plan_path: Path, suites: Callable[[], tuple[Suite, ...]]
) -> dg.AssetCheckResult:
    """Whether the cluster would take the gang, the budget its cost and the gate its result, as far as that can be known
    beforehand. `suites` reads what the gate will ask; where there is nothing to launch they are not read.

    Raises ValueError where it cannot be."""
    name = "launchable"
    if plan.data is None:
        return dg.AssetCheckResult(check_name=name, passed=True, description="There is nothing to launch.")
    findings, cost, refusals = check_launch(recipe, plan, plan_path)
    lacks = training_faults(recipe, [plan.trained_by()])
    reasons = [*refusals, *lacks, *gate_refusals(recipe, plan.base.uri, suites())]
    return dg.AssetCheckResult(
        check_name=name,
        passed=not reasons,
        description="; ".join(reasons) or "Nothing speaks against it.",
        metadata={
            "findings": table(
                ["severity", "rule", "where", "problem", "fix"],
                [(each.severity, each.rule, each.where, each.problem, each.fix) for each in findings],
            ),
            "hours": f"{cost.hours} ({cost.basis})",
            "cost in USD": str(cost.usd),
            "bill": table(["part", "USD", "basis"], [(part.name, str(part.usd), part.basis) for part in cost.parts]),
        },
    )


def refuse_unlaunchable(check: dg.AssetCheckResult) -> None:
    """Fails the step for good where `launchable` found a reason: nothing below it may be paid for."""
    if not check.passed:
        raise dg.Failure(f"Not launched: {check.description}", allow_retries=False)


def _cancelled(context: dg.AssetExecutionContext) -> bool:
    run = context.instance.get_run_by_id(context.run_id)
    return run is None or run.status in (dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED)
