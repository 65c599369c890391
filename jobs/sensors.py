"""When the loop starts by what happened. Sensors only ask for a run: every effect and all memory is the job's.

Stopped until somebody starts them in the UI.
"""

import dagster as dg

from assets.resources import Deployment
from jobs.canary_rollout import canary_rollout
from jobs.preference_tuning import preference_tuning
from pipeline.registry.record import Phase, read_state

UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


@dg.sensor(job=canary_rollout, minimum_interval_seconds=60)
def rollout_due(context: dg.SensorEvaluationContext, deployment: Deployment):
    """Asks for a look at the active rollout. How long it dwelt is in its record, not here."""
    state = read_state(deployment.store(), deployment.recipe().base_model.name)
    if not state.active or state.phase is Phase.HELD:
        return dg.SkipReason(f"No rollout to look after: {state.phase}.")
    unfinished = dg.RunsFilter(job_name="canary_rollout", statuses=UNFINISHED)
    if context.instance.get_runs_count(unfinished):
        return dg.SkipReason("A look is under way.")
    return dg.RunRequest(tags={"rollout": state.rollout})


@dg.sensor(job=preference_tuning, minimum_interval_seconds=300)
def champion_changed(context: dg.SensorEvaluationContext, deployment: Deployment):
    """Asks for the next iteration once for each new champion: its traffic is what the iteration learns from."""
    digest = deployment.champion().model.digest
    if context.cursor is None:  # the first tick only records
        context.update_cursor(digest)
        return dg.SkipReason(f"The champion is {digest[:12]}.")
    if context.cursor == digest:
        return dg.SkipReason(f"The champion is still {digest[:12]}.")
    context.update_cursor(digest)
    return dg.RunRequest(run_key=digest)
