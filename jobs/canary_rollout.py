"""The rollout as a job: one run takes the active rollout as far as its policy allows now, or rolls it back."""

import dagster as dg

from assets.registry import advance
from assets.resources import Deployment
from jobs.preference_tuning import executor


@dg.op
def advance_rollout(context: dg.OpExecutionContext, deployment: Deployment) -> None:
    """Tick the rollout: at most one transition at a time, from the record, safe to repeat."""
    state = advance(deployment, deployment.recipe().rollout.drive_for_s, context.log.info)
    weight = f", canary at {state.canary_weight}%" if state.active else ""
    context.log.info(f"rollout {state.rollout or '(none)'}: {state.phase}{weight} {state.reason}".rstrip())


@dg.job(executor_def=executor)
def canary_rollout():
    """Advances 5 -> 25 -> 100 percent and moves `champion`, or rolls back."""
    advance_rollout()
