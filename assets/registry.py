"""The registry stage: the candidate on record in MLflow, and its way to the traffic."""

import time

import dagster as dg

from assets.card import IterationRecords, card_sections
from assets.outcome import conclude
from assets.records import CHECKPOINT
from assets.resources import Deployment
from evals import report
from evals.gate import GateVerdict
from pipeline import layout
from pipeline.iteration import Iteration
from pipeline.pinning import pinned
from pipeline.plots import rewards as reward_plots
from pipeline.plots import traces as traces_plots
from pipeline.plots import training as training_plots
from pipeline.registry import versions
from pipeline.registry.advance import advance
from pipeline.registry.policy import policy_of
from pipeline.registry.propose import on_hold, propose
from pipeline.registry.record import ModelVersion, RolloutState


@dg.asset(group_name="registry", kinds={"mlflow"}, owners=["team:ml-platform"], output_required=False)
def model_version(context: dg.AssetExecutionContext, deployment: Deployment, gate_verdict: GateVerdict):
    """The candidate's version in MLflow's registry, with lineage and model card; absent when the gate refused it."""
    store, iteration = deployment.store(), deployment.iteration(gate_verdict.iteration)
    recorded = on_record(deployment, iteration, deployment.records(iteration), gate_verdict)
    registered = recorded.version
    if registered is None:
        context.log.info(f"The gate said {gate_verdict.verdict}: on record as run {recorded.run_id}, not registered.")
        conclude(store, iteration, "refused", "; ".join(gate_verdict.reasons))
        return
    version = store.once(iteration.path(layout.MODEL_VERSION), ModelVersion, lambda: registered)
    context.log.info(f"registered {version.name} version {version.version}")
    yield dg.Output(
        version,
        metadata={
            "name": version.name,
            "version": version.version,
            "run": version.run_id,
            "model digest": version.model.digest,
            "model": dg.MetadataValue.path(version.model.uri),
        },
    )


@dg.asset(group_name="registry", kinds={"python"}, owners=["team:ml-platform"], output_required=False)
def canary(
    context: dg.AssetExecutionContext, deployment: Deployment, model_version: ModelVersion, gate_verdict: GateVerdict
):
    """The candidate's rollout, opened at its first weight; `canary_rollout` takes it further."""
    store, iteration = deployment.store(), deployment.iteration(model_version.iteration)
    recipe = deployment.recipe_to_continue(iteration)
    health = CHECKPOINT.read(store, iteration.id).health
    if held := on_hold(health, iteration.id, recipe.rollout.accept_hold):
        context.log.warning(held)
        conclude(store, iteration, "held", held)
        return
    proposed = propose(
        store,
        iteration,
        model_version,
        verdict=str(gate_verdict.verdict),
        verdict_digest=gate_verdict.candidate.digest,
        bundle_digest=gate_verdict.bundle_digest,
        policy=policy_of(recipe.rollout),
        now=time.time(),
    )
    if proposed.waits:  # the iteration stays open
        context.log.warning(f"Not rolled out yet, the same launch does so once that is over: {proposed.refused}")
        return
    if proposed.refused:
        context.log.warning(f"Not rolled out: {proposed.refused}")
        conclude(store, iteration, "refused", proposed.refused)
        return
    state = advance(deployment.stage(context.log.info), deployment.tracking_uri(), 0.0)
    conclude(store, iteration, "rollout", f"version {model_version.version}, see the rollout")
    yield dg.Output(state, metadata=_shown(state))


def on_record(
    deployment: Deployment, iteration: Iteration, records: IterationRecords, verdict: GateVerdict | None = None
) -> versions.RecordedVersion:
    """The iteration as a run of MLflow, with a version if its verdict is PASS; a training that stopped has none."""
    trained = records.trained
    images = {
        "gates": traces_plots.funnel(records.traces.seen, records.rejected, records.traces.admitted),
        "rewards": reward_plots.reward_distribution(records.labels.histogram, records.labels.mean_reward),
        "training": training_plots.training_curve(trained.metrics),
        "health": training_plots.health_panels(trained.metrics, trained.health.findings),
        "step_time": training_plots.step_time(trained.metrics),
        "goodput": training_plots.goodput_bar(trained.goodput),
    }
    return versions.record(
        deployment.tracking_uri(),
        deployment.store(),
        iteration,
        trained.checkpoint,
        verdict=str(verdict.verdict) if verdict else "STOP",
        bundle_digest=verdict.bundle_digest if verdict else "",
        params=pinned(deployment.store(), iteration).model_dump(mode="json"),
        metrics=records.metrics,
        plots={**images, "evaluation": report.picture(records.report)} if records.report else images,
        card=card_sections(records, verdict),
        code_version=deployment.code_version(),
        tags=records.tags,
    )


def _shown(state: RolloutState) -> dict[str, str | int]:
    weight = state.canary_weight if state.proposal else 0
    return {"phase": str(state.phase), "canary weight in percent": weight, "why": state.reason}
