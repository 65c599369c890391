"""Runs as people start them: from Dagster's UI, by a sensor, by a schedule, again from a failure, and all at once.

One real `dagster dev` for all tests of this module, with its web server and its daemon.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from assets.environment import ITERATION_TAG, ONE_AT_A_TIME
from pipeline.core import layout
from tests.dagster_dev import BIN, DagsterDev
from tests.iterations import Iterations

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

NOT_NOW = ("selection.min_prompts=100000", "selection.min_pairs=100000")
"""So an iteration ends with its plan: "not now"."""
OFTEN = ("automation.quiet_s=0", "automation.min_new_labels=1", 'automation.labelling_cron="* * * * *"')


@pytest.fixture(scope="module")
def dev(iterations: Iterations, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagsterDev]:
    """Over a production that has served its days, and no iteration yet."""
    folder = tmp_path_factory.mktemp("ways")
    shutil.copytree(iterations.first(folder / "first") / "production", folder / "data" / "production")
    with DagsterDev(folder / "home", folder / "data", *NOT_NOW, *OFTEN) as started:
        yield started


def obstacle(dev: DagsterDev, run: str) -> Path:
    """Lets the run's third stage fail: a file where its folder would be. Call it before the labels are made."""
    dev.wait_for(lambda: ITERATION_TAG in dev.run(run)["tags"], "the first step to end")
    path = dev.data_root / layout.iteration(dev.run(run)["tags"][ITERATION_TAG], layout.PREFERENCE_TABLES)
    path.write_text("in the way")
    return path


def test_a_mistake_in_the_recipe_is_told_by_the_first_step(dev: DagsterDev) -> None:
    right = dev.recipe.read_text()
    dev.recipe.write_text(right.replace("min_prompts:", "min_promptz:"))
    try:
        run = dev.launch("label_traces")
        assert dev.ended(run) == "FAILURE"
        assert "selection.min_promptz" in dev.errors(run)
        typed = dev.type("dagster", "job", "launch", "-j", "preference_tuning", "-m", "jobs.definitions")
        assert typed.returncode == 1, typed.stdout
        assert "selection.min_promptz" in typed.stderr
        assert "Traceback" not in typed.stderr + typed.stdout
    finally:
        dev.recipe.write_text(right)


def test_a_run_from_the_ui_and_one_of_a_sensor_run(dev: DagsterDev) -> None:
    run = dev.launch("label_traces")
    assert dev.ended(run) == "SUCCESS", dev.errors(run)
    iteration = dev.run(run)["tags"][ITERATION_TAG]
    dev.start_sensor("new_labels")
    dev.wait_for(lambda: dev.runs("preference_tuning")[:-1], "the sensor to ask for a run")  # beside the refused one
    asked = dev.runs("preference_tuning")[0]
    assert dev.ended(asked["runId"]) == "SUCCESS", dev.errors(asked["runId"])
    assert dev.run(asked["runId"])["tags"][ITERATION_TAG] == iteration
    assert json.loads((dev.data_root / layout.iteration(iteration, layout.OUTCOME)).read_text())["ending"] == (
        "not trained"
    )


@pytest.mark.variant
def test_a_re_execution_from_failure_reads_the_pinned_recipe(iterations: Iterations, tmp_path: Path) -> None:
    first = iterations.first(tmp_path / "first")
    shutil.copytree(first / "production", tmp_path / "data" / "production")
    with DagsterDev(tmp_path / "home", tmp_path / "data", *NOT_NOW) as dev:
        run = dev.launch("preference_tuning")
        in_the_way = obstacle(dev, run)
        dev.write_recipe(*NOT_NOW, "training.seed=77", f"data_root={tmp_path / 'elsewhere'}")
        assert dev.ended(run) == "FAILURE"
        in_the_way.unlink()
        again = dev.re_execute(run)
        assert dev.ended(again) == "SUCCESS", dev.errors(again)
        iteration = dev.run(again)["tags"][ITERATION_TAG]
        pinned = json.loads((tmp_path / "data" / layout.iteration(iteration, layout.RECIPE)).read_text())
        assert pinned["training"]["seed"] != 77
        assert (tmp_path / "data" / layout.iteration(iteration, layout.OUTCOME)).is_file()
        assert not (tmp_path / "elsewhere").exists()


@pytest.mark.variant
def test_a_sensor_asks_again_after_a_failed_run(iterations: Iterations, tmp_path: Path) -> None:
    first = iterations.first(tmp_path / "first")
    shutil.copytree(first / "production", tmp_path / "data" / "production")
    with DagsterDev(tmp_path / "home", tmp_path / "data", *NOT_NOW, *OFTEN) as dev:
        labels = dev.launch("label_traces")
        in_the_way = obstacle(dev, labels)
        assert dev.ended(labels) == "SUCCESS"
        dev.start_sensor("new_labels")
        dev.wait_for(lambda: dev.runs("preference_tuning"), "the sensor to ask")
        failed = dev.runs("preference_tuning")[0]["runId"]
        assert dev.ended(failed) == "FAILURE"
        in_the_way.unlink()
        dev.wait_for(lambda: dev.runs("preference_tuning")[1:], "the sensor to ask again")
        asked = dev.runs("preference_tuning")[0]["runId"]
        assert dev.ended(asked) == "SUCCESS", dev.errors(asked)


@pytest.mark.variant
def test_a_schedule_fires_and_launches_wait_for_each_other(dev: DagsterDev) -> None:
    before = len(dev.runs("label_traces"))
    dev.start_schedule("hourly_labels")  # each minute here
    launch = [BIN / "dagster", "job", "launch", "-j", "preference_tuning", "-m", "jobs.definitions"]
    typed = subprocess.Popen(launch, cwd=dev.folder, env=dev.environment(), stdout=subprocess.PIPE, text=True)
    started = [dev.launch("preference_tuning"), dev.launch("label_traces"), dev.launch("preference_tuning")]
    assert [dev.ended(run) for run in started] == ["SUCCESS"] * 3
    output, _ = typed.communicate(timeout=400)
    assert typed.returncode == 0, output
    dev.wait_for(lambda: len(dev.runs("label_traces")) > before + 1, "the schedule to fire")
    fired = next(run for run in dev.runs("label_traces") if "dagster/schedule_name" in run["tags"])
    assert dev.ended(fired["runId"]) == "SUCCESS", dev.errors(fired["runId"])
    spans = sorted(
        (run["startTime"], run["endTime"])
        for run in dev.runs()
        if ONE_AT_A_TIME in run["tags"] and run["startTime"] and run["endTime"]
    )
    assert all(end <= start for (_, end), (start, _) in pairwise(spans)), spans


@pytest.mark.variant
@pytest.mark.parametrize("sensor", ["champion_changed", "feedback_drift", "rollout_due", "notices_due"])
def test_every_sensor_is_asked_by_the_daemon(sensor: str, dev: DagsterDev) -> None:
    dev.start_sensor(sensor)
    over = {"SUCCESS", "SKIPPED", "FAILURE"}
    dev.wait_for(lambda: over & {*dev.ticks(sensor)}, f"a look by {sensor}")
    assert "FAILURE" not in dev.ticks(sensor)


@pytest.mark.variant
@pytest.mark.parametrize(
    ("job", "config"),
    [
        ("preference_tuning", {}),
        ("canary_rollout", {}),
        ("lake_upkeep", {}),
        ("forget", {"ops": {"forget_one": {"config": {"user_id": "nobody-of-this-name"}}}}),
        ("delete_orphaned_gang", {"ops": {"delete_gang": {"config": {"iteration": "none"}}}}),
    ],
)
def test_every_job_runs_from_the_ui(job: str, config: dict[str, object], dev: DagsterDev) -> None:
    if not (dev.data_root / layout.LATEST).is_file():
        assert dev.ended(dev.launch("label_traces")) == "SUCCESS"
    run = dev.launch(job, config)
    assert dev.ended(run) == "SUCCESS", dev.errors(run)
