"""The loop as jobs: `preference_tuning` makes every asset from traces to canary, each step in a process of its own;
`canary_rollout` takes the rollout as far as its policy allows, `rollout_decision` as a person says.
"""

import dagster as dg

from assets.graph import ASSETS
from assets.registry import follow_rollout
from assets.resources import Deployment
from jobs.rollout.decide import outcome_lines, take
from pipeline.rollout.decision import RolloutDecision
from pipeline.rollout.record import Phase

# Steps are forked from a server that has loaded the definitions already: about a second less for each step.
# `jobs.steps` makes each end with that server, which ends with the run's worker.
executor = dg.multiprocess_executor.configured(
    {"max_concurrent": 2, "start_method": {"forkserver": {"preload_modules": ["jobs.steps", "jobs.definitions"]}}}
)

preference_tuning = dg.define_asset_job(
    "preference_tuning",
    selection=dg.AssetSelection.assets(*ASSETS),
    executor_def=executor,
    description="One iteration: production traces to a canary. With nothing new it says so and changes nothing.",
)


@dg.op
def advance_rollout(context: dg.OpExecutionContext, deployment: Deployment) -> None:
    """Tick the rollout: at most one transition at a time, from the record, safe to repeat."""
    state = follow_rollout(deployment, context.log.info, deployment.recipe().rollout.drive_for_s)
    weight = f", canary at {state.canary_weight}%" if state.active else ""
    context.log.info(f"rollout {state.rollout or '(none)'}: {state.phase}{weight} {state.reason}".rstrip())


@dg.job(executor_def=executor)
def canary_rollout():
    """Advances 5 -> 25 -> 100 percent and moves `champion`, or rolls back."""
    advance_rollout()


@dg.op(
    config_schema={
        "action": dg.Field(dg.Enum("Action", [dg.EnumValue("resume"), dg.EnumValue("abort")])),
        "rollout": dg.Field(str, description="Id of the rollout that is meant, or its candidate's digest."),
        "reason": dg.Field(str, description="Why. It goes into the event and the audit log."),
        "by": dg.Field(str, description="Who decides. Dagster does not know who clicked."),
    }
)
def decide_rollout(context: dg.OpExecutionContext, deployment: Deployment) -> None:
    """Resume or abort the active rollout, if it is the one that is meant."""
    config = context.op_config
    if not config["rollout"].strip():
        raise dg.Failure("The decision names no rollout. Give the id that is shown.", allow_retries=False)
    decision = RolloutDecision(**config)
    done = take(deployment, decision)
    text = "\n".join(outcome_lines(decision, done))
    if done.refused or (decision.action == "abort" and done.state.phase is Phase.ROLLING_BACK):
        raise dg.Failure(text, allow_retries=False)
    context.log.info(text)


@dg.job(executor_def=executor)
def rollout_decision():
    """A person's word on the active rollout: `resume` a held one, or `abort` it, which moves the traffic at once."""
    decide_rollout()
