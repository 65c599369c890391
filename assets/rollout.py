"""The rollout of the deployment's model: the world that it reads and moves, and a run that takes it further."""

import time
from collections.abc import Callable
from functools import partial

from assets.records import LABELS
from assets.resources import Deployment
from assets.traffic import is_routed, live_traffic, traffic_split
from pipeline.core import layout
from pipeline.core.iteration import Iteration
from pipeline.recipe import Recipe
from pipeline.recipe.pinning import pinned
from pipeline.recipe.section import joined
from pipeline.registry.versions import project
from pipeline.rollout.controller import drive
from pipeline.rollout.fold import read_log, read_state
from pipeline.rollout.grading import answer_grader, by_thumbs
from pipeline.rollout.policy import RolloutPolicy, policy_of
from pipeline.rollout.record import RolloutState
from pipeline.rollout.router import LiveMetricsPort, NullMetrics, RolloutPorts, Unsettled
from pipeline.traces.context import Log
from pipeline.traces.records import GovernedTraces
from pipeline.views.rollout import RolloutStatus, status

UNWATCHED = NullMetrics()


def rollout_ports(deployment: Deployment, metrics: LiveMetricsPort = UNWATCHED) -> RolloutPorts:
    """The rollout and its world, as the recipe names it."""
    store, name = deployment.store(), deployment.recipe().base_model.name
    split, registry = traffic_split(deployment), partial(project, deployment.mlflow())
    return RolloutPorts(store, name, split, registry, metrics, policy_now=partial(policy_now, deployment))


def read_status(deployment: Deployment) -> RolloutStatus:
    """The latest rollout of the model. A router that cannot be read is no reason not to show the record."""
    store, name = deployment.store(), deployment.recipe().base_model.name
    try:
        split = traffic_split(deployment).read()
    except Exception as error:  # boundary: any router
        split = Unsettled(reason=f"nothing: {error}")
    return status(name, deployment.champion(), read_log(store, name), split, time.time())


def is_gradable(deployment: Deployment, iteration: Iteration) -> bool:
    """Whether answers can be graded while the candidate is rolled out: by references, as some traces had them, or by
    the gate's judge. Without either, what users say does (`is_rated`), or requests, errors and latencies alone."""
    labels = LABELS.read(deployment.store(), iteration.id)
    return bool(labels.checked + labels.remembered) or deployment.recipe_of(iteration).gate_judge is not None


def is_rated(deployment: Deployment, iteration: Iteration) -> bool:
    """Whether users said anything of the answers that the candidate's iteration learned from."""
    feedback = LABELS.read(deployment.store(), iteration.id).components.get("feedback")
    return feedback is not None and feedback.count > 0


def policy_now(deployment: Deployment, id: str) -> RolloutPolicy:
    iteration = deployment.iteration(id)
    gradable, rated = is_gradable(deployment, iteration), is_rated(deployment, iteration)
    return policy_of(deployment.recipe_of(iteration).rollout, gradable, rated)


def follow_rollout(
    deployment: Deployment, log: Log, drive_for_s: float, looked: Callable[[], None] = lambda: None
) -> RolloutState:
    """Take the rollout as far as its policy allows now, on what production really serves.

    `looked` is called after each look. Of an embedded world the servers run for as long as this does, unless
    `make serve` keeps them.
    """
    store, name = deployment.store(), deployment.recipe().base_model.name
    state = read_state(store, name)
    if not state.active or state.waits_for_person or state.proposal is None:
        return drive(rollout_ports(deployment), log, 0.0)
    recipe = _judged_by(deployment, log)
    by_feedback = state.proposal.policy.by_feedback
    thumbs = by_thumbs(recipe.rollout.rated_within_s) if by_feedback else None

    with (
        deployment.judge(recipe.gate_judge) as judge,
        answer_grader(recipe, judge, store, state.rollout, log) as answers,
        live_traffic(deployment, recipe, thumbs or answers, log) as traffic,
    ):

        def wait(seconds: float) -> None:
            looked()
            traffic.wait(seconds)

        look_every_s = deployment.recipe().rollout.look_every_s
        state = drive(rollout_ports(deployment, traffic.metrics), log, drive_for_s, look_every_s, sleep=wait)
        looked()
        return state


def begin_rollout(deployment: Deployment, log: Log) -> RolloutState:
    """Bring a new rollout to its first weight where something routes requests; else that is left to `canary_rollout`,
    which starts the embedded world's servers and waits for those of others."""
    if is_routed(deployment):
        return follow_rollout(deployment, log, 0.0)
    log("No gateway runs: canary_rollout takes the candidate to its first weight where one does.")
    return read_state(deployment.store(), deployment.recipe().base_model.name)


def _judged_by(deployment: Deployment, log: Log) -> Recipe:
    """The recipe that the candidate's iteration was begun with; that of now where it is not known any more."""
    store, recipe = deployment.store(), deployment.recipe()
    state = read_state(store, recipe.base_model.name)
    assert state.proposal is not None, "a rollout is active"
    id = state.proposal.version.iteration
    try:
        governed = store.read(layout.iteration(id, layout.GOVERNED), GovernedTraces)
        if governed is None:
            raise ValueError(f"iteration {id} has no {layout.GOVERNED} any more.")
        return joined(pinned(store, governed.iteration), recipe)
    except ValueError as reason:  # a rollout has to be followed, and taken back, all the same
        log(f"The rollout is judged by the recipe of now: {reason}")
    return recipe
