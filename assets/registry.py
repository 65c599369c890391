"""The registry stage: the candidate on record in MLflow, and its way to the traffic."""

import time
from collections.abc import Callable
from contextlib import closing

import dagster as dg

from assets.card import IterationRecords, card_sections, why
from assets.outcome import conclude
from assets.resources import Deployment, read_record
from evals import report
from evals.gate import GateVerdict
from pipeline import layout
from pipeline.iteration import Iteration
from pipeline.pinning import pinned
from pipeline.plots import rewards as reward_plots
from pipeline.plots import traces as traces_plots
from pipeline.plots import training as training_plots
from pipeline.recipe import Recipe
from pipeline.registry import versions
from pipeline.registry.policy import policy_of
from pipeline.registry.propose import propose
from pipeline.registry.record import ModelVersion, RolloutState, read_events, read_state
from pipeline.registry.replay import ReplayedTraffic
from pipeline.registry.rollout import drive
from pipeline.registry.router import LocalRouter
from pipeline.registry.unseen import unseen
from pipeline.rewards.verifiers import grader_of
from pipeline.serving.sample import Messages, Sampling, sampler
from pipeline.traces.materialize import read
from pipeline.traces.tools import COLUMNS as TOOL_COLUMNS
from pipeline.traces.tools import calls_tools
from pipeline.training.result import Health, TrainingResult


@dg.asset(group_name="registry", kinds={"mlflow"}, owners=["team:ml-platform"], output_required=False)
def model_version(context: dg.AssetExecutionContext, deployment: Deployment, gate_verdict: GateVerdict):
    """The candidate's version in MLflow's registry, with lineage and model card; absent when the gate refused it."""
    store, iteration = deployment.store(), deployment.iteration(gate_verdict.iteration)
    recorded = on_record(deployment, iteration, deployment.records(iteration), gate_verdict)
    if recorded.version is None:
        context.log.info(f"The gate said {gate_verdict.verdict}: on record as run {recorded.run_id}, not registered.")
        conclude(store, iteration, "refused", "; ".join(gate_verdict.reasons))
        return
    version = store.once(iteration.path(layout.MODEL_VERSION), ModelVersion, lambda: recorded.version)
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
    trained: TrainingResult = read_record(store, iteration.id, "policy_checkpoint")
    if held := on_hold(trained.health, iteration.id, recipe.rollout.accept_hold):
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
    state = advance(deployment, 0.0, context.log.info)
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


def on_hold(health: Health, iteration: str, accepted: str) -> str:
    """Why the candidate of a training on HOLD is not rolled out, and how it would be; empty when it may be."""
    if health.verdict == "STOP":
        return f"The training stopped itself: {why(health)}. Its candidate is not rolled out. Start a new iteration."
    if health.verdict == "PASS" or accepted == iteration:
        return ""
    return (
        f"The training is on {health.verdict}: {why(health)}. Look at its plots and completions; to roll the "
        f"candidate out all the same, set rollout.accept_hold to {iteration!r} in the recipe, which starts no other "
        'iteration, and run: dagster job launch -j preference_tuning -o canary --tags \'{"iteration": '
        f'"{iteration}"}}\''
    )


def advance(deployment: Deployment, drive_for_s: float, log: Callable[[str], None]) -> RolloutState:
    """Take the model's rollout as far as its policy allows now, with the embedded router and replayed traffic."""
    store, name = deployment.store(), deployment.recipe().base_model.name
    state, requests, missing_reason = read_state(store, name), [], ""
    recipe = _judged_by(deployment, state, log)
    try:
        if state.active:
            requests = _replayable(deployment, log)
    except ValueError as reason:  # a rollout without traffic waits, and the split still follows
        log(f"No traffic to replay: {reason}")
        missing_reason = str(reason)
    limit = Sampling(max_completion_tokens=recipe.evaluation.max_completion_tokens)
    with closing(grader_of(recipe.rewards.verifier)) as check:
        return drive(
            store,
            name,
            LocalRouter(store, name),
            ReplayedTraffic(requests, sampler(log), check, recipe.rollout.replay_requests, limit, missing_reason),
            lambda state: versions.project(deployment.tracking_uri(), state),
            drive_for_s=drive_for_s,
            now=time.time,
            sleep=time.sleep,
            log=log,
            # Replayed requests come when they are asked for: with short dwells nothing is worth a minute's wait.
            look_every_s=min(60.0, max(1.0, *recipe.rollout.dwell_s)),
        )


def _judged_by(deployment: Deployment, state: RolloutState, log: Callable[[str], None]) -> Recipe:
    """The recipe that the candidate's iteration was begun with; that of now where nobody knows any more."""
    if state.active and state.proposal is not None:
        try:
            return deployment.recipe_of(deployment.iteration(state.proposal.version.iteration))
        except ValueError as reason:  # a rollout has to be followed, and taken back, all the same
            log(f"The rollout is judged by the recipe of now: {reason}")
    return deployment.recipe()


def _replayable(deployment: Deployment, log: Callable[[str], None]) -> list[tuple[Messages, str]]:
    """The newest recorded requests that the active rollout's candidate has not learned from; ValueError if too few."""
    recipe, store = deployment.recipe(), deployment.store()
    columns = [*TOOL_COLUMNS, "reference"]
    rows = read(store, deployment.lake(), deployment.latest().dataset, columns).to_pylist()
    requests: list[tuple[Messages, str]] = [
        ([{"role": m["role"], "content": m["content"]} for m in row["messages"]], row["reference"])
        for row in rows
        if row["reference"] and not calls_tools(row)
    ]
    if left_out := sum(map(calls_tools, rows)):
        log(f"{left_out:,} rows call tools and are not replayed: a replayed request has text alone.")
    events = read_events(store, recipe.base_model.name)
    return unseen(store, events, requests, log)


def _shown(state: RolloutState) -> dict[str, str | int]:
    weight = state.canary_weight if state.proposal else 0
    return {"phase": str(state.phase), "canary weight in percent": weight, "why": state.reason}
