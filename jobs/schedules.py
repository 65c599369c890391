"""When the loop starts by the clock. Crons are the recipe's; every schedule is stopped until somebody starts it."""

import dagster as dg

from assets.naming import LABELLING, LOOP
from jobs.triggers import Target, lately
from pipeline.recipe import Automation


def schedules_of(section: Automation, jobs: dict[str, Target]) -> list[dg.ScheduleDefinition]:
    """Of one model. `jobs`: by name."""

    def by_clock(name: str, job: str, cron: str, description: str) -> dg.ScheduleDefinition:
        def ask(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
            reason = lately(context.instance, section.quiet_s) if job == LOOP else ""
            return dg.SkipReason(reason) if reason else dg.RunRequest()

        return dg.ScheduleDefinition(
            name=name,
            job=jobs[job],
            cron_schedule=cron,
            execution_timezone=section.timezone,
            description=description,
            execution_fn=ask,
        )

    return [
        by_clock(
            "nightly",
            LOOP,
            section.iteration_cron,
            "An iteration over the traces of the day before, when there are new ones and none has just begun.",
        ),
        by_clock(
            "hourly_labels",
            LABELLING,
            section.labelling_cron,
            "Governs and labels what is new, which the sensor new_labels counts. Nothing is trained.",
        ),
        by_clock("weekly", "lake_upkeep", section.upkeep_cron, "Retention and the table's upkeep."),
        by_clock("weekly_review", "review_sample", section.review_cron, "A sheet of labels for people to score."),
    ]
