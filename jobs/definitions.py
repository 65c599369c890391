"""Everything that Dagster sees of one recipe. Heavy libraries are imported where they run, not here.

With a mistake in the recipe the definitions still load: runs fail in their first step with its text.
"""

import warnings

import dagster as dg

from assets.days import days
from assets.environment import Choice, chosen
from assets.graph import ASSETS, of_model
from assets.naming import DEPLOYMENT, IO_MANAGER
from assets.observations import champion_asset, kpi_asset
from assets.resources import Deployment, records
from jobs.gangs import delete_orphaned_gang
from jobs.governance import forget, lake_upkeep
from jobs.preference_tuning import canary_rollout, executor, loop_jobs, rollout_decision, run_tags
from jobs.sensors import schedules_of, sensors_of
from pipeline.core.redaction import guard_output
from pipeline.recipe import Automation

OP_JOBS = (canary_rollout, rollout_decision, forget, lake_upkeep, delete_orphaned_gang)

warnings.filterwarnings("ignore", category=dg.BetaWarning)  # Dagster's own, about a parameter that is not set here
guard_output()  # every process that runs a step loads the definitions


def definitions_of(choice: Choice) -> dg.Definitions:
    """The definitions of the model of one recipe."""
    settings = Deployment(recipe_path=choice.recipe_path, overrides=choice.overrides)
    try:
        recipe = settings.recipe()
    except ValueError as error:
        dg.get_dagster_logger().error(f"No run of this recipe will go well: {error}")
        recipe = None
    prefix = recipe.key_prefix if recipe is not None else None
    automation = recipe.automation if recipe is not None else Automation()
    tags = {each.name: run_tags(each.name, choice, recipe) for each in OP_JOBS}
    op_jobs = {j.name: j.graph.to_job(j.name, j.description, executor_def=executor, tags=tags[j.name]) for j in OP_JOBS}
    jobs = {**loop_jobs(choice, recipe), **op_jobs}
    return dg.Definitions(
        assets=of_model([*ASSETS, *days(prefix), champion_asset(automation), kpi_asset()], prefix),
        jobs=list(jobs.values()),
        schedules=schedules_of(settings, automation, jobs),
        sensors=sensors_of(settings, jobs),
        resources={DEPLOYMENT: settings.fresh(), IO_MANAGER: records},
    )


definitions = definitions_of(chosen())
