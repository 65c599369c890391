"""What people are told of iterations and failed runs: the job `tell` sends it to NOTIFY_URL, at least once. No message
has a text of users, or of an error, which may quote one."""

from collections.abc import Iterator

import dagster as dg

from assets.naming import LABELLING, LOOP, ROLLOUT
from assets.resources import Deployment
from jobs.preference_tuning import executor
from jobs.triggers import ended_iterations
from pipeline.core import layout
from pipeline.rollout.notices import Notice, Told, send

MARK = f"{layout.ITERATIONS}/notices.json"
WATCHED = (LOOP, LABELLING, ROLLOUT, "forget", "lake_upkeep", "review_sample", "delete_orphaned_gang")
"""Jobs whose failed runs are told."""
NEWEST = 20
"""Failed runs of each job that are looked at."""
ENDINGS = {
    "held": "HELD: it passed the gate, and its training's health wants a person's look before it is rolled out",
    "registered": "PASS: its candidate is registered, and rollout.traffic is none: deploy it by your own means",
    "refused": "FAIL: the gate, a block or the rollout refused its candidate",
    "stopped": "STOPPED: the sentinel ended its training",
}
"""Of those that end without a candidate in the traffic; that a method lacks evidence is everyday, and `new_labels` says
so."""


def waiting(instance: dg.DagsterInstance, deployment: Deployment) -> list[Notice]:
    """What was not told yet, in order; where nothing ever was, the newest alone."""
    told = deployment.store().read(MARK, Told)
    every = sorted([*_endings(deployment), *_failures(instance, deployment)])
    return every[-1:] if told is None else [notice for notice in every if notice.epoch > told.sent]


@dg.op
def tell_what_is_due(context: dg.OpExecutionContext, deployment: Deployment) -> None:
    """One message of what was not told yet. A receiver that does not take it gets it later, and fails no run."""
    due = waiting(context.instance, deployment)
    if error := send(deployment.store(), MARK, due, deployment.notify_url(), "pt status"):
        context.log.warning(f"Not told yet: {error}")
    else:
        context.log.info("\n".join(notice.text for notice in due) or "There was nothing to tell.")


@dg.job(executor_def=executor)
def tell():
    """Sends to NOTIFY_URL which iterations ended without a candidate in the traffic, and which runs failed."""
    tell_what_is_due()


def _endings(deployment: Deployment) -> Iterator[Notice]:
    name = deployment.recipe().base_model.name
    for ended in ended_iterations(deployment.store()):
        if words := ENDINGS.get(ended.outcome.ending):
            yield Notice(ended.at, f"{name}, iteration {ended.id}: {words}. To read more: pt status")


def _failures(instance: dg.DagsterInstance, deployment: Deployment) -> Iterator[Notice]:
    name = deployment.recipe().base_model.name
    for job in WATCHED:
        failed = dg.RunsFilter(job_name=job, statuses=[dg.DagsterRunStatus.FAILURE])
        for record in instance.get_run_records(failed, limit=NEWEST):
            text = f"{name}: RUN FAILED, {job} (run {record.dagster_run.run_id}). Dagster has the reason."
            yield Notice(int((record.end_time or record.update_timestamp.timestamp()) * 1e9), text)
