"""The training stage."""

import dagster as dg

from assets import pictures
from assets.outcome import conclude
from assets.resources import Deployment
from pipeline.training.launch import TrainingRefused, train
from pipeline.training.plan import TrainingPlan


@dg.asset(
    group_name="training",
    kinds={"pytorch", "huggingface"},
    owners=["team:post-training"],
    pool="training",
    output_required=False,
    retry_policy=dg.RetryPolicy(max_retries=2, delay=5),
)
def policy_checkpoint(context: dg.AssetExecutionContext, deployment: Deployment, training_plan: TrainingPlan):
    """The tuned policy: an adapter, and the model with it merged in. Absent when the plan is not to train."""
    store, iteration = deployment.store(), deployment.iteration(training_plan.iteration)
    try:
        result = train(store, training_plan, deployment.recipe().training.timeout_s, context.log.info)
    except TrainingRefused as refusal:
        raise dg.Failure(str(refusal), allow_retries=False) from refusal
    if result is None:
        context.log.info("The plan is not to train: nothing downstream of it runs.")
        conclude(store, iteration, "not trained", "; ".join(training_plan.decision.reasons))
        return
    context.log.info(f"trained {result.checkpoint.step} steps in {result.seconds:.0f} s, {result.attempts} attempt(s)")
    yield dg.Output(
        result,
        metadata={
            "steps": result.checkpoint.step,
            "seconds": result.seconds,
            "attempts": result.attempts,
            "resumed from": str(list(result.resumed_from) or "nothing"),
            "curve": pictures.shown(pictures.training_curve(result.metrics), "Reward and accuracy by step"),
            "adapter digest": result.checkpoint.adapter.digest,
            "adapter": dg.MetadataValue.path(result.checkpoint.adapter.uri),
            "model": dg.MetadataValue.path(result.checkpoint.model.uri),
        },
    )
