"""The training stage."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import dagster as dg

from assets.cluster import launchable, refuse_unlaunchable, train_on_cluster
from assets.loop_asset import loop_asset
from assets.metadata import output, picture, shares, table
from assets.observations import end, refuse_blocked
from assets.on_record import MLFLOW_RUN_TAG, launch_tags, on_record, run_links
from assets.resources import Deployment
from evals.suites import asked_by
from k8s.attempts import Ledger
from k8s.launch import account_for
from pipeline.core import layout
from pipeline.core.iteration import Iteration
from pipeline.registry.runs import MetricsSender
from pipeline.selection.preferences import PreferenceDataset
from pipeline.traces.erased import shared_lock
from pipeline.traces.scope import consented
from pipeline.training.launch import train
from pipeline.training.plan import TrainingPlan
from pipeline.training.result import TrainingResult
from pipeline.training.schedule import rows_without_consent
from pipeline.views.iteration import training_panels


@loop_asset(
    "training",
    {"pytorch", "huggingface"},
    "pipeline/training",
    "pipeline/recipe/method.py",
    "pipeline/recipe/methods.py",
    pool="training",
    output_required=False,
    retry_policy=dg.RetryPolicy(max_retries=2, delay=5),
    checks={"healthy": "What the sentinel says of the training."},
)
def policy_checkpoint(context: dg.AssetExecutionContext, deployment: Deployment, training_plan: TrainingPlan):
    """The tuned policy: an adapter, and the model with it merged in. Absent without a plan to train, and after STOP."""
    store, iteration = deployment.store(), deployment.iteration(training_plan.iteration)
    refuse_blocked(deployment, iteration)
    try:
        recipe = deployment.recipe_of(iteration)
        _refuse_withdrawn(deployment, training_plan)
        if store.read(iteration.path(layout.RESULT), TrainingResult) is None:
            plan_path = store.path(iteration.path(layout.PLAN))
            check = launchable(recipe, training_plan, plan_path, lambda: asked_by(store, recipe.evaluation, iteration))
            refuse_unlaunchable(check)
        with _live(context, deployment, iteration) as live:
            if recipe.compute.kubernetes is None:
                scorers = training_plan.scorers
                asked = training_plan.rewards.judge if scorers is not None and scorers.ask_judge else None
                with deployment.judge(asked) as judge:
                    result = train(store, training_plan, recipe.training.timeout_s, context.log.info, judge)
            else:
                result = train_on_cluster(context, deployment, training_plan)
    except ValueError as refusal:  # what no retry can cure, TrainingRefused among it
        refuse_blocked(deployment, iteration)
        raise dg.Failure(str(refusal), allow_retries=False) from refusal
    if result is None:
        context.log.info("The plan is not to train: nothing downstream of it runs.")
        end(context, deployment, iteration, "not trained", "; ".join(training_plan.decision.reasons))
        yield dg.AssetCheckResult(check_name="healthy", passed=True, description="There was nothing to train.")
        return
    refuse_blocked(deployment, iteration)
    context.log.info(f"{result.checkpoint.step} steps in {result.goodput.total_s:.0f} s, {result.attempts} attempt(s)")
    health = result.health
    yield dg.AssetCheckResult(
        check_name="healthy",
        passed=health.verdict == "PASS",
        severity=dg.AssetCheckSeverity.ERROR if health.verdict == "STOP" else dg.AssetCheckSeverity.WARN,
        description="; ".join([str(health.verdict), *(finding.reason for finding in health.findings)]),
        metadata={
            "findings": table(
                ["verdict", "rule", "step", "reason"], [(e.verdict, e.rule, e.step, e.reason) for e in health.findings]
            )
        },
    )
    account = account_for(store, training_plan, result, recipe.compute)
    metadata = _shown(result, account)
    if result.health.verdict == "STOP":
        run, why = on_record(deployment, iteration, run=context.run).run, result.health.why
        context.log.error(f"The training stopped itself: {why}. Run {run.run_id} in MLflow; nothing downstream runs.")
        metadata |= run_links(deployment, run)
        end(context, deployment, iteration, "stopped", why)
        yield dg.AssetObservation(asset_key=context.asset_key, description=why, metadata=metadata)
        return
    if live is not None and live.identity is not None:
        metadata |= run_links(deployment, live.identity)
        context.instance.add_run_tags(context.run_id, {MLFLOW_RUN_TAG: live.identity.run_id})
    yield output(result, result.checkpoint.model.digest, metadata)


def _live(
    context: dg.AssetExecutionContext, deployment: Deployment, iteration: Iteration
) -> AbstractContextManager[MetricsSender | None]:
    """Metrics in MLflow as they come; of a training that is over, nothing more comes."""
    if deployment.store().read(iteration.path(layout.RESULT), TrainingResult) is not None:
        return nullcontext()
    tags = launch_tags(deployment, context.run)
    return MetricsSender(deployment.mlflow, deployment.store(), iteration, tags, context.log.warning)


def _refuse_withdrawn(deployment: Deployment, plan: TrainingPlan) -> None:
    """Raises ValueError when people behind the plan's rows withdrew their consent since it was made."""
    store, method = deployment.store(), plan.method
    iteration = deployment.iteration(plan.iteration)
    dataset = store.read(iteration.path(layout.PREFERENCES), PreferenceDataset)
    if method is None or dataset is None or store.read(iteration.path(layout.RESULT), TrainingResult) is not None:
        return
    with shared_lock(store):
        agreed = {trace for trace, _ in consented(store, deployment.lake(), iteration.dataset)}
    withdrawn = rows_without_consent(dataset, method, agreed) - plan.without_consent
    if withdrawn > 0:
        raise ValueError(
            f"Consent to {withdrawn} rows of the plan was withdrawn since it was made. Make it again: pt retry "
            f"training_plan --iteration {iteration.id}"
        )


def _shown(result: TrainingResult, account: Ledger) -> dict[str, Any]:
    """What a person looks for: was it healthy, did it learn, where did time and money go, what is left."""
    metrics, goodput = result.metrics, result.goodput
    figures = {
        "seconds": goodput.total_s,
        "goodput": goodput.share,
        "device hours": account.device_hours,
        "cost in USD": account.usd.high,
        "cost in USD at least": account.usd.low,
        "judge USD": result.judge_usd,
    }
    return {
        "health": result.health.verdict,
        "metrics by step": picture(training_panels(metrics, result.health.findings), "Metrics by step"),
        "seconds by cause": shares({"productive": goodput.productive_s, **goodput.badput_s}),
        "steps": result.checkpoint.step,
        **{name: float(f"{value:.4g}") for name, value in figures.items()},
        "interruptions": table(
            ["cause", "step reached", "steps lost"], [(e.cause, e.step, e.lost_steps) for e in result.preemptions]
        ),
    }
