"""A look of the rollout at the traffic: which requests it replays, which recipe judges them, and the drive itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager

from pipeline import layout
from pipeline.iteration import Iteration
from pipeline.pinning import pinned
from pipeline.recipe import Recipe
from pipeline.registry import versions
from pipeline.rewards.judge import Budget, Endpoint, open_judge
from pipeline.rewards.verifiers import grader_of
from pipeline.rollout.drive import Pace, drive
from pipeline.rollout.fold import read_state
from pipeline.rollout.judged import JudgedGrader
from pipeline.rollout.ports import RolloutPorts
from pipeline.rollout.record import RolloutState, read_events
from pipeline.rollout.replay import AnsweredRequest, Graded, Grader, ReplayedTraffic
from pipeline.rollout.router import LocalRouter
from pipeline.rollout.unseen import unseen
from pipeline.section import joined
from pipeline.serving.inference import Messages, Sampling
from pipeline.serving.sample import sampler
from pipeline.traces.context import StageContext
from pipeline.traces.materialize import read
from pipeline.traces.records import GovernedTraces
from pipeline.traces.tools import COLUMNS as TOOL_COLUMNS
from pipeline.traces.tools import calls_tools


def advance(
    context: StageContext, tracking_uri: str, drive_for_s: float, judge: Endpoint | None = None
) -> RolloutState:
    """Take the model's rollout as far as its policy allows now, with the embedded router and replayed traffic.

    `judge`: where the gate's judge listens, which grades the answers to requests without references.
    """
    store, name, log = context.store, context.recipe.base_model.name, context.log
    state, requests, missing_reason = read_state(store, name), [], ""
    recipe = _judged_by(context, state)
    try:
        if state.active:
            requests = _replayable(context, judged=recipe.gate_judge is not None and judge is not None)
    except ValueError as reason:  # a rollout without traffic waits, and the split still follows
        log(f"No traffic to replay: {reason}")
        missing_reason = str(reason)
    limit = Sampling(max_completion_tokens=recipe.evaluation.max_completion_tokens)
    with _grader(recipe, requests, judge, log) as grade:
        ports = RolloutPorts(
            store,
            name,
            LocalRouter(store, name),
            lambda state: versions.project(tracking_uri, state),
            ReplayedTraffic(requests, sampler(log), grade, recipe.rollout.replay_requests, limit, missing_reason),
        )
        # Replayed requests come when they are asked for: with short dwells nothing is worth a minute's wait.
        look_every_s = min(60.0, max(1.0, *recipe.rollout.dwell_s))
        return drive(ports, Pace(drive_for_s, look_every_s, time.time, time.sleep), log)


@contextmanager
def _grader(
    recipe: Recipe, requests: Sequence[tuple[Messages, str]], endpoint: Endpoint | None, log: Callable[[str], None]
) -> Generator[Grader]:
    """What grades the answers to these requests: the verifier, or the gate's judge where they have no references."""
    judge = recipe.gate_judge
    if judge is not None and endpoint is not None and requests and not any(reference for _, reference in requests):
        prices = judge.usd_per_million_prompt_tokens, judge.usd_per_million_completion_tokens
        budget = Budget(judge.max_tokens, judge.max_usd, *prices)
        with open_judge(endpoint, judge, budget, log) as session:
            yield JudgedGrader(session)
        return
    with closing(grader_of(recipe.rewards.verifier)) as check:

        def verified(answered: Sequence[AnsweredRequest]) -> Sequence[Graded]:
            return check([(each.answer.text, each.reference) for each in answered])

        yield verified


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


def _replayable(context: StageContext, judged: bool) -> list[tuple[Messages, str]]:
    """The newest recorded requests that the active rollout's candidate has not learned from: those with references,
    or, where no request has one and a judge can be asked, all of them. ValueError if too few."""
    latest = context.store.read(layout.LATEST, Iteration)
    if latest is None:
        raise ValueError("There is no iteration yet. Launch the whole job: dagster job launch -j preference_tuning")
    rows = read(context.store, context.lake, latest.dataset, [*TOOL_COLUMNS, "reference"]).to_pylist()
    checkable = any(row["reference"] for row in rows)
    if not checkable and not judged:
        raise ValueError(
            "no recorded request has a reference answer, and no judge can be asked. Name one in evaluation.judge and "
            "set JUDGE_URL, or connect the router's own metrics."
        )
    requests: list[tuple[Messages, str]] = [
        ([{"role": m["role"], "content": m["content"]} for m in row["messages"]], row["reference"] or "")
        for row in rows
        if (row["reference"] or not checkable) and not calls_tools(row)
    ]
    if left_out := sum(map(calls_tools, rows)):
        context.log(f"{left_out:,} rows call tools and are not replayed: a replayed request has text alone.")
    events = read_events(context.store, context.recipe.base_model.name)
    return unseen(context.store, events, requests, context.log)
