"""The jobs: `preference_tuning` (traces to canary), `label_traces` (its first two stages), `canary_rollout`,
`rollout_decision`. Each step has a process of its own."""

import json
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import get_args

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from assets.environment import CHOICE_TAG, DATA_ROOT_TAG, ONE_AT_A_TIME, Choice
from assets.graph import ASSETS
from assets.naming import LABELLING, LOOP, ROLLOUT
from assets.observations import show_figures, tell_of_champion, tell_of_rollout
from assets.resources import Deployment
from assets.rollout import follow_rollout, rollout_ports
from jobs.rollout import exit_code, outcome_lines
from pipeline.recipe import Recipe
from pipeline.rollout.decision import RolloutDecision, decide
from pipeline.rollout.record import Action

# Steps are forked from a server that has loaded the definitions already: about a second less for each step.
# `jobs.steps` makes each end with that server, which ends with the run's worker.
executor = dg.multiprocess_executor.configured(
    {"max_concurrent": 2, "start_method": {"forkserver": {"preload_modules": ["jobs.steps", "jobs.definitions"]}}}
)

UNFINISHED = [dg.DagsterRunStatus[each] for each in ("QUEUED", "STARTING", "STARTED", "CANCELING")]

DRIVE_FOR_TAG = "preference_tuning/drive_for_s"
"""On a run of the rollout: how long it looks on, in place of the recipe's `rollout.drive_for_s`."""


def run_tags(job: str, choice: Choice, recipe: Recipe | None) -> dict[str, str]:
    """What each run of a job carries: the recipe that is meant, the data root, and whose turn it waits for.

    Of the runs with one value of ONE_AT_A_TIME the daemon starts one (`dagster.yaml`), and the others wait.
    """
    tags = {CHOICE_TAG: json.dumps(choice)}
    if recipe is not None:
        root = str(Path(recipe.data_root).absolute())
        turn = {LOOP: "loop", LABELLING: "loop", ROLLOUT: "rollout"}.get(job)
        tags |= {DATA_ROOT_TAG: root} | ({ONE_AT_A_TIME: f"{turn} on {root}"} if turn else {})
    return tags


def loop_jobs(choice: Choice, recipe: Recipe | None) -> dict[str, UnresolvedAssetJobDefinition]:
    """The jobs over one model's assets, by name."""
    prefix = recipe.key_prefix if recipe is not None else None

    def job(name: str, stages: Sequence[str], description: str) -> UnresolvedAssetJobDefinition:
        return dg.define_asset_job(
            name,
            selection=dg.AssetSelection.assets(*(dg.AssetKey(each).with_prefix(prefix or []) for each in stages)),
            executor_def=executor,
            description=description,
            tags=run_tags(name, choice, recipe),
        )

    return {
        LOOP: job(
            LOOP,
            [each.key.to_user_string() for each in ASSETS],
            "One iteration: production traces to a canary. With nothing new it says so and changes nothing.",
        ),
        LABELLING: job(
            LABELLING,
            ["traces", "reward_labels"],
            "The first two stages of an iteration. The sensor new_labels counts what came; the loop goes on from it.",
        ),
    }


@dg.op
def advance_rollout(context: dg.OpExecutionContext, deployment: Deployment) -> None:
    """Tick the rollout: at most one transition at a time, from the record, safe to repeat."""

    looked = partial(tell_of_rollout, context, deployment)
    drive_for_s = float(context.run_tags.get(DRIVE_FOR_TAG, deployment.recipe().rollout.drive_for_s))
    state = follow_rollout(deployment, context.log.info, drive_for_s, looked)
    tell_of_champion(context, deployment)
    if state.proposal is not None:
        show_figures(context, deployment, state.proposal.version.iteration)
    weight = f", canary at {state.canary_weight}%" if state.active else ""
    context.log.info(f"rollout {state.rollout or '(none)'}: {state.phase}{weight} {state.reason}".rstrip())


@dg.job(executor_def=executor)
def canary_rollout():
    """Advances 5 -> 25 -> 100 percent and moves `champion`, or rolls back."""
    advance_rollout()


@dg.op(
    config_schema={
        "action": dg.Field(dg.Enum("Action", [dg.EnumValue(action) for action in get_args(Action)])),
        "rollout": dg.Field(str, description="Id of the rollout that is meant."),
        "reason": dg.Field(str, description="Why. It goes into the event and the audit log."),
        "by": dg.Field(str, description="Who decides. Dagster does not know who clicked."),
    }
)
def decide_rollout(context: dg.OpExecutionContext, deployment: Deployment) -> None:
    """Carry out a decision about the latest rollout, if it is the one that is meant: a form is easily sent late."""
    decision = RolloutDecision(**context.op_config)
    if not decision.rollout:
        raise dg.Failure("The decision names no rollout. pt rollout status has its id.", allow_retries=False)
    try:
        done = decide(rollout_ports(deployment), decision, time.time())
    except ValueError as error:
        raise dg.Failure(str(error), allow_retries=False) from error
    tell_of_rollout(context, deployment)
    tell_of_champion(context, deployment)
    text = "\n".join(outcome_lines(decision, done))
    if exit_code(decision, done):
        raise dg.Failure(text, allow_retries=False)
    context.log.info(text)


@dg.job(executor_def=executor)
def rollout_decision():
    """A person's word on a rollout: approve its candidate, pause, resume, abort or roll it back, traffic included."""
    decide_rollout()
