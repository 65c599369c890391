"""When the loop starts by what happened (sensors) and by the clock (schedules, whose crons are the recipe's). Sensors
only ask for a run, one for each event; a run that failed is asked for again under another run key. All are stopped
until somebody starts them, but for those of `jobs.gangs`."""

import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import dagster as dg

from assets.environment import DATA_ROOT_TAG
from assets.naming import LABELLING, LOOP, ROLLOUT
from assets.resources import Deployment
from jobs.gangs import gang_held, gang_orphaned
from jobs.notices import notices_due
from jobs.preference_tuning import UNFINISHED
from jobs.triggers import Target, champion_quality, collecting, lately, new_labels
from pipeline.recipe import Automation
from pipeline.rollout.fold import read_state

Asked = dg.RunRequest | list[dg.RunRequest] | dg.SkipReason
EVENT_TAG = "preference_tuning/asked_for"
"""On a run that a sensor of the loop asked for: the event that it is for."""


def rollout_due(context: dg.SensorEvaluationContext, deployment: Deployment) -> Asked:
    """Asks for a look at the active rollout, at a held one too, for it may do harm while a person decides.

    How long it dwelt is in its record, not here.
    """
    state = read_state(deployment.store(), deployment.recipe().base_model.name)
    if not state.active:
        return dg.SkipReason(f"No rollout to look after: {state.phase}.")
    if _is_under_way(context, ROLLOUT):
        return dg.SkipReason("A look is under way.")
    return dg.RunRequest(tags={"rollout": state.rollout})


def champion_changed(context: dg.SensorEvaluationContext, deployment: Deployment) -> Asked:
    """Asks for the next iteration at each change of the champion, also back to an earlier one: its traffic is what the
    iteration learns from."""
    champion, quiet_s = deployment.champion(), deployment.recipe().automation.quiet_s
    # A model may serve again after another one did: the moment since when it serves is part of the event.
    event = f"champion {champion.model.digest[:12]} since {champion.since or 'the beginning'}"
    if context.cursor is None:  # the first tick only records
        context.update_cursor(event)
        return dg.SkipReason(f"The champion is {champion.model.digest[:12]}.")
    if context.cursor == event:
        return dg.SkipReason(f"The champion is still {champion.model.digest[:12]}.")
    if reason := lately(context.instance, quiet_s) or collecting(deployment):
        return dg.SkipReason(reason)
    return ask(context, deployment, event, cursor=event)


def new_labels_came(context: dg.SensorEvaluationContext, deployment: Deployment) -> Asked:
    """Asks for an iteration when enough distinct labels came that no ended one had, for each set of them once.

    Labels come by `label_traces`. A day that is governed again brings the same ones, which do not count twice.
    """
    section = deployment.recipe().automation
    if isinstance(cursor := _labelled_since(context, deployment, section), dg.SkipReason):
        return cursor
    iteration = deployment.latest()
    came = new_labels(deployment, iteration, section)
    if came.new < came.wanted:
        context.update_cursor(cursor)
        return dg.SkipReason(came.line())
    if reason := collecting(deployment):
        return dg.SkipReason(reason)
    context.log.info(came.line())
    return ask(context, deployment, f"new_labels of iteration {iteration.id}", cursor, {"new_labels": str(came.new)})


def feedback_drift(context: dg.SensorEvaluationContext, deployment: Deployment) -> Asked:
    """Asks for an iteration when the champion's answers became worse: of the labels that no ended iteration had, fewer
    are liked by users, or are good to the judge, than of the last iteration of this champion that ended, proven.

    The proof is that of the rollout's harm test, so looking often finds no fall that is not there more often than
    `rollout.alpha` says.
    """
    section = deployment.recipe().automation
    if isinstance(cursor := _labelled_since(context, deployment, section), dg.SkipReason):
        return cursor
    iteration = deployment.latest()
    quality = champion_quality(deployment, iteration, section)
    if not quality.fell:
        context.update_cursor(cursor)
        return dg.SkipReason(quality.line())
    context.log.info(quality.line())
    fell = ", ".join(each.signal for each in quality.signals if each.fell)
    return ask(context, deployment, f"feedback_drift of iteration {iteration.id}", cursor, {"feedback_drift": fell})


def ask(
    context: dg.SensorEvaluationContext,
    deployment: Deployment,
    event: str,
    cursor: str,
    tags: dict[str, str] | None = None,
) -> dg.RunRequest | dg.SkipReason:
    """A run of the loop for an event. The cursor moves when a run for it has succeeded, or a person cancelled one; a
    run that failed is asked for again, with the number of the attempt in its key."""
    mine = {EVENT_TAG: event, DATA_ROOT_TAG: str(deployment.store().root)}
    runs = context.instance.get_runs(dg.RunsFilter(job_name=LOOP, tags=mine))
    if at_work := [run for run in runs if not run.is_finished]:
        return dg.SkipReason(f"Run {at_work[0].run_id[:8]} is under way for this.")
    if over := [run for run in runs if run.status is not dg.DagsterRunStatus.FAILURE]:
        context.update_cursor(cursor)
        return dg.SkipReason(f"Run {over[0].run_id[:8]} was made for this: {over[0].status.value}.")
    return dg.RunRequest(run_key=f"{event}, attempt {len(runs) + 1}", tags={EVENT_TAG: event, **(tags or {})})


def sensors_of(settings: Deployment, jobs: dict[str, Target]) -> list[dg.SensorDefinition]:
    """Of one model. `jobs`: by name. The recipe is read at each tick: the process of the code lives for days."""

    def sensor(
        name: str, job: str | None, every_s: int, evaluate: Callable[[dg.SensorEvaluationContext, Deployment], Any]
    ) -> dg.SensorDefinition:
        is_on = evaluate is gang_held  # it ends work, and begins none
        return dg.SensorDefinition(
            name=name,
            evaluation_fn=lambda context: evaluate(context, settings.fresh()),
            job=jobs[job] if job else None,
            minimum_interval_seconds=every_s,
            description=inspect.getdoc(evaluate),
            default_status=dg.DefaultSensorStatus.RUNNING if is_on else dg.DefaultSensorStatus.STOPPED,
        )

    orphaned = dg.run_status_sensor(
        run_status=dg.DagsterRunStatus.CANCELED,
        name="gang_orphaned",
        monitored_jobs=[jobs[LOOP]],
        request_job=jobs["delete_orphaned_gang"],
        default_status=dg.DefaultSensorStatus.RUNNING,
        minimum_interval_seconds=60,
        description=inspect.getdoc(gang_orphaned),
    )
    return [
        sensor("champion_changed", LOOP, 300, champion_changed),
        sensor("new_labels", LOOP, 300, new_labels_came),
        sensor("feedback_drift", LOOP, 300, feedback_drift),
        sensor("rollout_due", ROLLOUT, 60, rollout_due),
        sensor("notices_due", None, 60, notices_due),
        orphaned(lambda context: gang_orphaned(context, settings.fresh())),
        sensor("gang_held", "delete_orphaned_gang", 300, gang_held),
    ]


def _labelled_since(
    context: dg.SensorEvaluationContext, deployment: Deployment, section: Automation
) -> str | dg.SkipReason:
    """The cursor after the newest labels, or why they are not looked at now."""
    newest = context.instance.fetch_materializations(deployment.key("reward_labels"), limit=1).records
    if not newest:
        return dg.SkipReason("There are no labels yet: launch label_traces, or start the schedule hourly_labels.")
    if context.cursor == str(newest[0].storage_id):
        return dg.SkipReason("No labels were made since the last count.")
    if reason := lately(context.instance, section.quiet_s):
        return dg.SkipReason(reason)
    return str(newest[0].storage_id)


def _is_under_way(context: dg.SensorEvaluationContext, job: str) -> bool:
    return bool(context.instance.get_runs_count(dg.RunsFilter(job_name=job, statuses=UNFINISHED)))


def schedules_of(settings: Deployment, section: Automation, jobs: dict[str, Target]) -> list[dg.ScheduleDefinition]:
    """Of one model. `jobs`: by name."""

    def by_clock(name: str, job: str, cron: str, description: str) -> dg.ScheduleDefinition:
        def ask(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
            reason = ""
            if job == LOOP:
                with suppress(ValueError):  # a mistake in the recipe is told by the run's first step
                    reason = lately(context.instance, section.quiet_s) or collecting(settings.fresh())
            return dg.SkipReason(reason) if reason else dg.RunRequest()

        return dg.ScheduleDefinition(
            name=name,
            job=jobs[job],
            cron_schedule=cron,
            execution_timezone=str(section.timezone),
            description=description,
            execution_fn=ask,
        )

    return [
        by_clock(
            "nightly",
            LOOP,
            section.iteration_cron,
            "An iteration over the traces of the day before, when there are new ones, none has just begun and its gate "
            "could show the gain that is expected.",
        ),
        by_clock(
            "hourly_labels",
            LABELLING,
            section.labelling_cron,
            "Governs and labels what is new, which the sensor new_labels counts. Nothing is trained.",
        ),
        by_clock("weekly", "lake_upkeep", section.upkeep_cron, "Retention and the table's upkeep."),
    ]
