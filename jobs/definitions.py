"""Everything that Dagster sees. Heavy libraries stay out: they are imported where they run.

One recipe makes one set of definitions. Where PREFERENCE_TUNING_RECIPES names a folder, each of its recipes makes a set
of its own, whose names begin with the model's prefix; a file that does not load stands in the asset graph with the
reason, under `recipes_that_do_not_load`.
"""

import re
import warnings

import dagster as dg

from assets.champion import champion_asset
from assets.days import days_of
from assets.graph import assets_of
from assets.kpi.observation import kpi_asset
from assets.naming import DEPLOYMENT, IO_MANAGER
from assets.resources import Deployment, records_of
from jobs.gangs import delete_orphaned_gang
from jobs.models import BrokenRecipe, OperatedModel, models
from jobs.notices import tell
from jobs.preference_tuning import canary_rollout, executor, loop_jobs, rollout_decision
from jobs.reviews import review_sample
from jobs.run_contents import MODEL_TAG
from jobs.schedules import schedules_of
from jobs.sensors import sensors_of
from jobs.upkeep import forget, lake_upkeep

OP_JOBS = (canary_rollout, rollout_decision, review_sample, forget, lake_upkeep, tell, delete_orphaned_gang)
LEFT_OUT = "recipes_that_do_not_load"

warnings.filterwarnings("ignore", category=dg.BetaWarning)  # Dagster's own, about a parameter that nobody here sets


def definitions_for(model: OperatedModel) -> dg.Definitions:
    """The definitions of one model. Its steps are given its own deployment: assets by a resource that has the model's
    name, jobs by a resource of their own."""
    names, section = model.names, model.recipe.automation
    settings = Deployment(recipe_path=model.choice.recipe_path, overrides=model.choice.overrides)
    tags = {MODEL_TAG: names.prefix} if names.prefix else {}
    jobs = {
        **loop_jobs(names, tags),
        **{
            job.name: job.graph.to_job(
                names.word(job.name), job.description, {DEPLOYMENT: settings}, executor_def=executor, tags=tags
            )
            for job in OP_JOBS
        },
    }
    return dg.Definitions(
        assets=[*assets_of(names, model.recipe), *days_of(names), champion_asset(names, section), kpi_asset(names)],
        jobs=list(jobs.values()),
        schedules=schedules_of(names, section, jobs),
        sensors=sensors_of(names, settings, jobs),
        resources={names.word(DEPLOYMENT): settings, names.word(IO_MANAGER): records_of(names)},
    )


def left_out(broken: BrokenRecipe) -> dg.AssetSpec:
    """Where a person looks for the model: its file, and why it is not there."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", broken.file.stem)
    return dg.AssetSpec([LEFT_OUT, name], group_name=LEFT_OUT, description=broken.reason)


_of_dagster = models()
for _each in _of_dagster.broken:
    dg.get_dagster_logger().error(f"{_each.file} is left out: {_each.reason}")
definitions = dg.Definitions.merge(
    *map(definitions_for, _of_dagster.operated), dg.Definitions(assets=[left_out(each) for each in _of_dagster.broken])
)
