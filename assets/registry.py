"""The registry stage: the candidate on record in MLflow, and its way to the traffic."""

import time
from pathlib import Path

import dagster as dg

from assets.loop_asset import loop_asset
from assets.metadata import output
from assets.observations import end, refuse_blocked, rollout_metadata
from assets.on_record import MLFLOW_RUN_TAG, on_record, run_links
from assets.records import CHECKPOINT
from assets.resources import Deployment
from assets.rollout import begin_rollout, policy_now, read_status
from evals.gate import GateVerdict
from pipeline.core import layout
from pipeline.registry.runs import version_page
from pipeline.rollout.policy import account, proposer
from pipeline.rollout.probe import fingerprints
from pipeline.rollout.propose import RolloutCandidate, on_hold, propose
from pipeline.rollout.record import ModelVersion
from pipeline.rollout.router import Unrouted
from pipeline.serving.adapters import unservable
from pipeline.serving.model_places import export_model

DEPLOY_IT = (
    "Deploy it by your own means. The next iteration is compared with the champion as it is: for it to begin from what "
    "you deployed, set base_model.uri to models:/NAME@ALIAS and move that alias in MLflow."
)


@loop_asset("registry", {"mlflow"}, "pipeline/registry", output_required=False)
def model_version(context: dg.AssetExecutionContext, deployment: Deployment, gate_verdict: GateVerdict):
    """The candidate's version in MLflow's registry, with lineage and model card; absent when the gate refused it."""
    store, iteration = deployment.store(), deployment.iteration(gate_verdict.iteration)
    refuse_blocked(deployment, iteration)
    recorded = on_record(deployment, iteration, gate_verdict, context.run)
    registered = recorded.version
    context.instance.add_run_tags(context.run_id, {MLFLOW_RUN_TAG: recorded.run.run_id})
    if registered is None:
        context.log.info(
            f"The gate said {gate_verdict.verdict}: on record as run {recorded.run.run_id}, not registered."
        )
        end(context, deployment, iteration, "refused", "; ".join(gate_verdict.reasons))
        return
    refuse_blocked(deployment, iteration)  # somebody was forgotten while it was registered: it is tagged now
    version = store.once(iteration.path(layout.MODEL_VERSION), ModelVersion, lambda: registered)
    context.log.info(f"registered {version.name} version {version.version}")
    page = version_page(deployment.registry_uri(), version.name, version.version)
    yield output(
        version,
        [version.name, version.version, version.model.digest],
        {
            **({"version in MLflow": dg.MetadataValue.url(page)} if page else {}),
            "version": version.version,
            **run_links(deployment, recorded.run),
        },
    )


@loop_asset("registry", {"python"}, "pipeline/rollout", output_required=False)
def canary(
    context: dg.AssetExecutionContext, deployment: Deployment, model_version: ModelVersion, gate_verdict: GateVerdict
):
    """The candidate's rollout, opened at its first weight; `canary_rollout` takes it further."""
    store, iteration = deployment.store(), deployment.iteration(model_version.iteration)
    recipe = deployment.recipe_of(iteration)
    health = CHECKPOINT.read(store, iteration.id).health
    if held := on_hold(health, iteration.id, recipe.rollout.accept_hold):
        context.log.warning(held)
        end(context, deployment, iteration, "held", held)
        return
    log = context.log.info
    if recipe.rollout.traffic.kind == "none":
        registered = f"version {model_version.version} of {model_version.name} is registered. {Unrouted().reason}"
        context.log.warning(f"{registered}. {DEPLOY_IT}")
        end(context, deployment, iteration, "registered", registered)
        return
    if recipe.rollout.export_to:
        adapter = () if unservable(Path(model_version.adapter.uri)) else (model_version.adapter,)
        for model in (iteration.champion, model_version.model, *adapter):
            export_model(model, recipe.rollout.export_to, model_version.name, log)
    proposed = propose(
        store,
        iteration,
        RolloutCandidate(
            model_version,
            gate_verdict.judged,
            proposer(context.run.tags, account()),
            fingerprints(recipe, iteration.champion, model_version.model, log),
        ),
        policy_now(deployment, iteration.id),
        time.time(),
    )
    if proposed.waits:  # the iteration stays open
        context.log.warning(f"Not rolled out yet, the same launch does so once that is over: {proposed.refused}")
        return
    if proposed.refused:
        context.log.warning(f"Not rolled out: {proposed.refused}")
        end(context, deployment, iteration, "refused", proposed.refused)
        return
    state = begin_rollout(deployment, log)
    end(context, deployment, iteration, "rollout", f"version {model_version.version}, see the rollout")
    yield output(state, [state.rollout, model_version.model.digest], rollout_metadata(read_status(deployment)))
