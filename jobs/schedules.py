"""When the loop starts by the clock. Stopped until somebody starts it in the UI."""

import dagster as dg

from jobs.preference_tuning import preference_tuning

nightly = dg.ScheduleDefinition(
    name="nightly",
    job=preference_tuning,
    cron_schedule="0 3 * * *",
    execution_timezone="UTC",
    description="An iteration over the traces of the day before, when there are new ones.",
)
