"""Which runs the summary takes its seconds from."""

from pathlib import Path

import dagster as dg

from assets.environment import DATA_ROOT_TAG
from assets.resources import ITERATION_TAG, Deployment
from jobs.summary import runs_of
from pipeline.core.iteration import identify
from pipeline.core.storage import DatasetRef, ModelRef
from tests.loop import EMBEDDED, instance


@dg.job(name="preference_tuning")
def loop() -> None: ...


@dg.job(name="canary_rollout")
def rollout() -> None: ...


def test_runs_of_another_data_root_are_not_of_this_summary(tmp_path: Path) -> None:
    base = ModelRef(uri="/models/base", digest="0" * 64)
    iteration = identify(0, "arithmetic", base, DatasetRef(uri="d", rows=1, digest="1"), "recipe")
    settings = Deployment(recipe_path=str(EMBEDDED), overrides=[f"data_root='{tmp_path / 'here'}'"])
    with instance(tmp_path / "dagster") as home:

        def run(job: dg.JobDefinition, folder: str, **tags: str) -> str:
            tags[DATA_ROOT_TAG] = str(tmp_path / folder)
            return home.create_run_for_job(job, tags=tags).run_id

        of_iteration = {ITERATION_TAG: iteration.id}
        ours = [run(loop, "here", **of_iteration), run(loop, "here", **of_iteration)]
        run(rollout, "here")
        ours.append(run(rollout, "here"))
        run(loop, "elsewhere", **of_iteration)
        run(rollout, "elsewhere")
        assert [each.run_id for each in runs_of(home, settings, iteration)] == ours
