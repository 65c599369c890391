"""Everything that Dagster sees. Heavy libraries stay out: they are imported where they run."""

import warnings

import dagster as dg

from assets.graph import ASSETS
from assets.resources import deployment, records
from jobs.preference_tuning import canary_rollout, preference_tuning, rollout_decision
from jobs.reviews import review_sample, weekly_review
from jobs.sensors import champion_changed, delete_orphaned_gang, gang_held, gang_orphaned, nightly, rollout_due
from jobs.upkeep import forget, lake_upkeep, weekly

settings = deployment()
warnings.filterwarnings("ignore", category=dg.BetaWarning)  # Dagster's own, about a parameter that nobody here sets

definitions = dg.Definitions(
    assets=ASSETS,
    jobs=[
        preference_tuning,
        canary_rollout,
        rollout_decision,
        review_sample,
        forget,
        lake_upkeep,
        delete_orphaned_gang,
    ],
    schedules=[nightly, weekly, weekly_review],
    sensors=[champion_changed, rollout_due, gang_orphaned, gang_held],
    resources={"deployment": settings, "io_manager": records},
)
