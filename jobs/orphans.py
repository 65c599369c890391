"""Deletes the gang of a run that was cancelled while no step of it was alive to do so.

That is so when a run is marked as cancelled by force, or its host is gone: the gang would train on, unasked.
"""

import dagster as dg

from assets.cluster import abandon_gang
from assets.resources import ITERATION_TAG, Deployment
from jobs.preference_tuning import executor, preference_tuning

UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


@dg.op(
    config_schema={"iteration": dg.Field(str, description="Its id, as the run's tag `iteration` has it.")},
    retry_policy=dg.RetryPolicy(max_retries=2, delay=30),
)
def delete_gang(context: dg.OpExecutionContext, deployment: Deployment) -> None:
    """Delete what the launches of an iteration left in the cluster, unless a run of it is under way."""
    iteration = context.op_config["iteration"]
    others = dg.RunsFilter(job_name=preference_tuning.name, tags={ITERATION_TAG: iteration}, statuses=UNFINISHED)
    if runs := context.instance.get_runs(others):
        context.log.info(f"Run {runs[0].run_id} follows the gang of iteration {iteration}: it stays.")
        return
    name = abandon_gang(deployment, iteration, "its run was cancelled", context.log.info)
    context.log.info(f"{name or 'No gang'} was left of iteration {iteration}.")


@dg.job(executor_def=executor)
def delete_orphaned_gang():
    """Takes the gang of a cancelled run out of the cluster; its checkpoints stay, and a new run resumes from them."""
    delete_gang()
