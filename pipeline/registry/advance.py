"""A look of the rollout at the traffic: which requests it replays, which recipe judges them, and the drive itself."""

from __future__ import annotations

import time
from contextlib import closing

from pipeline import layout
from pipeline.iteration import Iteration
from pipeline.pinning import pinned
from pipeline.recipe import Recipe
from pipeline.registry import versions
from pipeline.registry.record import RolloutState, read_events, read_state
from pipeline.registry.replay import ReplayedTraffic
from pipeline.registry.rollout import Pace, RolloutPorts, drive
from pipeline.registry.router import LocalRouter
from pipeline.registry.unseen import unseen
from pipeline.rewards.verifiers import grader_of
from pipeline.section import joined
from pipeline.serving.inference import Messages, Sampling
from pipeline.serving.sample import sampler
from pipeline.traces.context import StageContext
from pipeline.traces.materialize import read
from pipeline.traces.records import GovernedTraces
from pipeline.traces.tools import COLUMNS as TOOL_COLUMNS
from pipeline.traces.tools import calls_tools


def advance(context: StageContext, tracking_uri: str, drive_for_s: float) -> RolloutState:
    """Take the model's rollout as far as its policy allows now, with the embedded router and replayed traffic."""
    store, name, log = context.store, context.recipe.base_model.name, context.log
    state, requests, missing_reason = read_state(store, name), [], ""
    recipe = _judged_by(context, state)
    try:
        if state.active:
            requests = _replayable(context)
    except ValueError as reason:  # a rollout without traffic waits, and the split still follows
        log(f"No traffic to replay: {reason}")
        missing_reason = str(reason)
    limit = Sampling(max_completion_tokens=recipe.evaluation.max_completion_tokens)
    with closing(grader_of(recipe.rewards.verifier)) as check:
        ports = RolloutPorts(
            store,
            name,
            LocalRouter(store, name),
            lambda state: versions.project(tracking_uri, state),
            ReplayedTraffic(requests, sampler(log), check, recipe.rollout.replay_requests, limit, missing_reason),
        )
        # Replayed requests come when they are asked for: with short dwells nothing is worth a minute's wait.
        look_every_s = min(60.0, max(1.0, *recipe.rollout.dwell_s))
        return drive(ports, Pace(drive_for_s, look_every_s, time.time, time.sleep), log)


def _judged_by(context: StageContext, state: RolloutState) -> Recipe:
    """The recipe that the candidate's iteration was begun with; that of now where nobody knows any more."""
    if state.active and state.proposal is not None:
        id = state.proposal.version.iteration
        try:
            governed = context.store.read(layout.iteration(id, layout.GOVERNED), GovernedTraces)
            if governed is None:
                raise ValueError(f"iteration {id} has no {layout.GOVERNED} any more.")
            return joined(pinned(context.store, governed.iteration), context.recipe)
        except ValueError as reason:  # a rollout has to be followed, and taken back, all the same
            context.log(f"The rollout is judged by the recipe of now: {reason}")
    return context.recipe


def _replayable(context: StageContext) -> list[tuple[Messages, str]]:
    """The newest recorded requests that the active rollout's candidate has not learned from; ValueError if too few."""
    latest = context.store.read(layout.LATEST, Iteration)
    if latest is None:
        raise ValueError("There is no iteration yet. Launch the whole job: dagster job launch -j preference_tuning")
    rows = read(context.store, context.lake, latest.dataset, [*TOOL_COLUMNS, "reference"]).to_pylist()
    requests: list[tuple[Messages, str]] = [
        ([{"role": m["role"], "content": m["content"]} for m in row["messages"]], row["reference"])
        for row in rows
        if row["reference"] and not calls_tools(row)
    ]
    if left_out := sum(map(calls_tools, rows)):
        context.log(f"{left_out:,} rows call tools and are not replayed: a replayed request has text alone.")
    events = read_events(context.store, context.recipe.base_model.name)
    return unseen(context.store, events, requests, context.log)
