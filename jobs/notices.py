"""Sensor `notices_due`: tells people at NOTIFY_URL, at least once, of a rollout, of iterations that ended without a
candidate in the traffic, and of runs that failed. No message has a text of users, or of an error, which may quote
one."""

import json
from collections.abc import Iterator

import dagster as dg

from assets.naming import LABELLING, LOOP, ROLLOUT
from assets.records import IterationOutcome
from assets.resources import Deployment
from pipeline.core import layout
from pipeline.core.storage import Store
from pipeline.rollout.fold import read_log
from pipeline.rollout.notices import Notice, notices, post

WATCHED = (LOOP, LABELLING, ROLLOUT, "forget", "lake_upkeep", "delete_orphaned_gang")
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


def notices_due(context: dg.SensorEvaluationContext, deployment: Deployment) -> dg.SkipReason:
    """Posts to NOTIFY_URL what a rollout waits for or how it ended, which iterations were held or refused, and which
    runs failed. What the receiver does not take is posted by the next tick; the first tick only records.
    """
    if not (url := deployment.notify_url()):
        return dg.SkipReason("NOTIFY_URL is not set.")
    name = deployment.recipe().base_model.name
    every = [
        *notices(read_log(deployment.store(), name).events),
        *_endings(deployment, name),
        *_failures(context.instance, name),
    ]
    newest = json.dumps({each.kind: each.place for each in sorted(every)})
    if context.cursor is None:
        context.update_cursor(newest)
        return dg.SkipReason("What comes from now on is told.")
    last_place: dict[str, int] = json.loads(context.cursor)
    due = [each.text for each in every if each.place > last_place.get(each.kind, 0)]
    if due and (error := post(due, url)):
        return dg.SkipReason(f"Not told yet: {error}")
    context.update_cursor(newest)
    return dg.SkipReason("\n".join(due) or "Everything was told.")


def ended_iterations(store: Store) -> dict[str, IterationOutcome]:
    """Every iteration that has ended, by its id, in the order of their ends."""
    ids = [path.parent.name for path in store.path(layout.ITERATIONS).glob(f"*/{layout.OUTCOME}")]
    outcomes = {id: store.read(layout.iteration(id, layout.OUTCOME), IterationOutcome) for id in ids}
    ended = {id: each for id, each in outcomes.items() if each is not None}
    return dict(sorted(ended.items(), key=lambda each: each[1].at))


def _endings(deployment: Deployment, name: str) -> Iterator[Notice]:
    for id, outcome in ended_iterations(deployment.store()).items():
        if words := ENDINGS.get(outcome.ending):
            yield Notice("ended", round(outcome.at * 1e9), f"{name}, iteration {id}: {words}. To read more: pt status")


def _failures(instance: dg.DagsterInstance, name: str) -> Iterator[Notice]:
    for job in WATCHED:
        failed = dg.RunsFilter(job_name=job, statuses=[dg.DagsterRunStatus.FAILURE])
        for record in instance.get_run_records(failed, limit=NEWEST):
            text = f"{name}: RUN FAILED, {job} (run {record.dagster_run.run_id}). Dagster has the reason."
            yield Notice("failed", int((record.end_time or record.update_timestamp.timestamp()) * 1e9), text)
