"""The end of gangs without a run that wants them: of a cancelled run, and of one that is held in a queue. Both sensors
run from the start, as they only end work."""

import json
import time

import dagster as dg

from assets.cluster import abandon_gang
from assets.naming import LOOP
from assets.resources import ITERATION_TAG, Deployment
from jobs.preference_tuning import UNFINISHED, executor
from k8s.attempts import unfinished_iterations

UNFOLLOWED_S = 3600.0
"""How long a gang may be without a run: hosts and daemons are started again, and people launch again by hand."""


@dg.op(
    config_schema={
        "iteration": dg.Field(str, description="Its id, as the run's tag `iteration` has it."),
        "held_only": dg.Field(bool, default_value=False, description="Leave it unless a queue holds it."),
    },
    retry_policy=dg.RetryPolicy(max_retries=2, delay=30),
)
def delete_gang(context: dg.OpExecutionContext, deployment: Deployment) -> None:
    """Delete what the launches of an iteration left in the cluster, unless a run of it is under way."""
    iteration, held_only = context.op_config["iteration"], context.op_config["held_only"]
    others = dg.RunsFilter(job_name=LOOP, tags={ITERATION_TAG: iteration}, statuses=UNFINISHED)
    if runs := context.instance.get_runs(others):
        context.log.info(f"Run {runs[0].run_id} follows the gang of iteration {iteration}: it stays.")
        return
    why = "no run follows it" if held_only else "its run was cancelled"
    name = abandon_gang(deployment, iteration, why, context.log.info, held_only)
    context.log.info(f"{name or ('No held gang' if held_only else 'No gang')} was left of iteration {iteration}.")


@dg.job(executor_def=executor)
def delete_orphaned_gang():
    """Takes the gang of a cancelled run, or one that a queue holds and no run follows, out of the cluster; its
    checkpoints stay, and a new run resumes from them."""
    delete_gang()


def gang_orphaned(context: dg.RunStatusSensorContext, deployment: Deployment) -> dg.RunRequest | dg.SkipReason:
    """Asks for the end of a cancelled run's gang. Where a step was alive, it has seen to that already."""
    iteration = context.dagster_run.tags.get(ITERATION_TAG, "")
    if not iteration or deployment.recipe().compute.kubernetes is None:
        return dg.SkipReason("The run that was cancelled had no gang.")
    config = {"ops": {"delete_gang": {"config": {"iteration": iteration}}}}
    return dg.RunRequest(run_key=context.dagster_run.run_id, run_config=config, tags={ITERATION_TAG: iteration})


def gang_held(context: dg.SensorEvaluationContext, deployment: Deployment) -> list[dg.RunRequest] | dg.SkipReason:
    """Asks for the end of a gang that its queue holds and that no run has followed for an hour.

    Its launcher may have been killed. It would keep its place in the queue, of a strict queue the head, and train once
    it is admitted, unasked. What runs is left alone: the next launch follows it. The cursor has since when no run
    follows, by iteration, and begins again with each request.
    """
    if deployment.recipe().compute.kubernetes is None:
        return dg.SkipReason("The recipe has no cluster.")
    runs = context.instance.get_runs(dg.RunsFilter(job_name=LOOP, statuses=UNFINISHED))
    followed = {run.tags.get(ITERATION_TAG, "") for run in runs}
    if "" in followed:
        return dg.SkipReason("A run is on its way to a gang.")  # it does not say yet to which
    now, since = time.time(), json.loads(context.cursor or "{}")
    waiting = {id: since.get(id, now) for id in unfinished_iterations(deployment.store()) if id not in followed}
    due = [id for id, at in waiting.items() if now - at > UNFOLLOWED_S]
    context.update_cursor(json.dumps({**waiting, **dict.fromkeys(due, now)}))
    return [
        dg.RunRequest(
            run_config={"ops": {"delete_gang": {"config": {"iteration": id, "held_only": True}}}},
            tags={ITERATION_TAG: id},
        )
        for id in due
    ] or dg.SkipReason(f"{len(waiting)} gangs are followed by no run, none of them for long.")
