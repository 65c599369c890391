"""When an iteration is asked for: by labels that none had, and one for whatever asks within an hour."""

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._utils.schedules import schedule_execution_time_iterator

from assets.records import Ending, conclude
from jobs.definitions import definitions
from jobs.sensors import (
    champion_changed,
    champion_quality,
    feedback_drift,
    lately,
    new_labels,
    new_labels_came,
    schedules_of,
)
from pipeline.core.iteration import Iteration
from pipeline.core.storage import ModelRef
from pipeline.recipe import Automation
from pipeline.rollout.propose import ChampionState
from tests.jobs.test_sensors import run_of, tick
from tests.labels import label
from tests.loop import deployment

THRESHOLD = ("automation.min_new_labels=10",)
LOOP = "preference_tuning"


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def traces(first: int, last: int) -> dict[str, float | None]:
    return {f"t{at}": 0.5 for at in range(first, last)}


def end(root: Path, iteration: Iteration, ending: Ending) -> None:
    """After those that have ended, also for who restores all files with one time."""
    store = deployment(root).store()
    conclude(store, iteration, ending, "why")
    os.utime(store.path(iteration.path("outcome.json")), (1, 1))


def told(instance: dg.DagsterInstance) -> None:
    """What a run of `label_traces` leaves in Dagster."""
    instance.report_runless_asset_event(dg.AssetMaterialization("reward_labels"))


def test_only_labels_that_may_be_trained_on_count_once(tmp_path: Path) -> None:
    settings = deployment(tmp_path)
    store = settings.store()
    end(tmp_path, label(store, "one", traces(0, 10)), "refused")
    newest = label(store, "two", {**traces(5, 25), "none": None, "no": 0.5}, without_consent=("no",))
    assert new_labels(settings, newest) == 15


@pytest.mark.slow
def test_an_iteration_is_asked_for_once_for_enough_labels(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    store = deployment(tmp_path).store()
    assert tick(new_labels_came, tmp_path, None, instance, THRESHOLD) == ([], None), "there are none"
    end(tmp_path, label(store, "one", traces(0, 20)), "rollout")
    label(store, "two", traces(0, 29))
    told(instance)
    requests, cursor = tick(new_labels_came, tmp_path, None, instance, THRESHOLD)
    assert requests == []
    told(instance)  # the same days again
    requests, again = tick(new_labels_came, tmp_path, cursor, instance, THRESHOLD)
    assert (requests, again == cursor) == ([], False)
    label(store, "three", traces(0, 30))
    assert tick(new_labels_came, tmp_path, again, instance, THRESHOLD)[0] == [], "nothing was made since the last count"
    told(instance)
    (request,), cursor = tick(new_labels_came, tmp_path, again, instance, THRESHOLD)
    assert (request.run_key, request.tags["new_labels"]) == ("new_labels of iteration three, attempt 1", "10")
    run_of(instance, tmp_path, request, dg.DagsterRunStatus.FAILURE)
    quiet = (*THRESHOLD, "automation.quiet_s=0")
    (second,), cursor = tick(new_labels_came, tmp_path, cursor, instance, quiet)
    assert second.run_key == "new_labels of iteration three, attempt 2"
    run_of(instance, tmp_path, second, dg.DagsterRunStatus.SUCCESS)
    told(instance)  # the same labels again
    assert tick(new_labels_came, tmp_path, cursor, instance, quiet)[0] == []


GOOD, BAD = {"feedback": 0.75, "judge": 1.0}, {"feedback": 0.25, "judge": 0.25}


@pytest.fixture(autouse=True)
def few_answers_tell_a_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Automation, "min_drift_labels", 40)


def drift(
    root: Path, instance: dg.DagsterInstance, cursor: str | None = None
) -> tuple[list[dg.RunRequest], str | None]:
    told(instance)
    return tick(feedback_drift, root, cursor, instance)


def test_worse_answers_ask_for_one_iteration(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """Of answers that no ended iteration had: those of the iteration before do not count again as bad ones."""
    store = deployment(tmp_path).store()
    assert tick(feedback_drift, tmp_path, None, instance) == ([], None), "there are no labels"
    first = label(store, "one", traces(0, 200), scores=GOOD)
    assert drift(tmp_path, instance)[0] == [], "nothing has ended"
    end(tmp_path, first, "rollout")
    label(store, "two", traces(0, 239), scores=BAD)
    assert drift(tmp_path, instance)[0] == [], "39 are new"
    label(store, "three", traces(160, 240), scores=BAD)
    (request,), cursor = drift(tmp_path, instance)
    assert request.run_key == "feedback_drift of iteration three, attempt 1"
    assert request.tags["feedback_drift"] == "thumbs, judge"
    run_of(instance, tmp_path, request, dg.DagsterRunStatus.SUCCESS)
    quiet = ("automation.quiet_s=0",)
    requests, moved = tick(feedback_drift, tmp_path, cursor, instance, quiet)
    assert (requests, moved != cursor) == ([], True)


@pytest.mark.parametrize(
    ("scores", "champion", "fell"),
    [
        ({"feedback": 0.25}, "m", "thumbs"),
        ({"judge": 0.5}, "m", "judge"),
        ({"judge": 0.75}, "m", ""),
        ({"judge": 0.0, "judge_id": "another"}, "m", ""),
        (BAD, "promoted since", ""),
    ],
)
def test_only_what_can_be_compared_falls(scores: dict[str, Any], champion: str, fell: str, tmp_path: Path) -> None:
    settings = deployment(tmp_path)
    end(tmp_path, label(settings.store(), "one", traces(0, 200), scores=GOOD), "rollout")
    newest = label(settings.store(), "two", traces(200, 300), scores=scores, champion=champion)
    quality = champion_quality(settings, newest, settings.recipe().automation)
    assert ", ".join(each.signal for each in quality.signals if each.fell) == fell
    assert ("proven to have fallen" in quality.line()) == quality.fell == bool(fell)


def test_answers_of_days_that_left_the_window_count(tmp_path: Path) -> None:
    settings = deployment(tmp_path)
    end(tmp_path, label(settings.store(), "one", traces(0, 200), scores=GOOD), "rollout")
    label(settings.store(), "two", traces(200, 300), scores={**BAD, "day": "2026-01-06"})
    newest = label(settings.store(), "three", traces(300, 310), scores={**BAD, "day": "2026-01-07"})
    (thumbs, _) = champion_quality(settings, newest, settings.recipe().automation).signals
    assert (thumbs.since.trials, thumbs.since.hits, thumbs.fell) == (110, 0, True)


def test_two_triggers_in_an_hour_make_one_iteration(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Labels and a new champion at once: one asks, and the other waits until the hour is over."""
    label(deployment(tmp_path).store(), "one", traces(0, 20))
    told(instance)
    _, champion_cursor = tick(champion_changed, tmp_path, None, instance)
    (_,), _ = tick(new_labels_came, tmp_path, None, instance, THRESHOLD)
    job = definitions.resolve_job_def(LOOP)
    run = instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED)
    promoted = ChampionState(model=ModelRef(uri="", digest="new"), version=1, promotions=1)
    monkeypatch.setattr("jobs.sensors.Deployment.champion", lambda _: promoted)
    assert tick(champion_changed, tmp_path, champion_cursor, instance) == ([], champion_cursor)
    instance.report_run_canceled(run)
    assert tick(champion_changed, tmp_path, champion_cursor, instance) == ([], champion_cursor), "less than an hour ago"
    over = ("automation.quiet_s=0",)
    (request,), cursor = tick(champion_changed, tmp_path, champion_cursor, instance, over)
    assert request.run_key.startswith("champion new since") and cursor == champion_cursor


def test_a_run_of_other_stages_keeps_nobody_quiet(instance: dg.DagsterInstance) -> None:
    job = definitions.resolve_job_def(LOOP)
    stages = dg.DagsterRun(job_name=LOOP, step_keys_to_execute=["traces"], status=dg.DagsterRunStatus.STARTED)
    instance.add_run(stages)
    assert lately(instance, 3600.0) == ""
    instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED)
    assert "one is enough" in lately(instance, 3600.0)


def test_the_clock_waits_for_a_run_that_has_begun() -> None:
    repository = definitions.get_repository_def()
    nightly, at = repository.get_schedule_def("nightly"), datetime.now(UTC)

    def asked() -> Any:
        context = dg.build_schedule_context(instance, at, repository_def=repository)
        return nightly.evaluate_tick(context)

    with dg.instance_for_test() as instance:  # a schedule opens its own by a reference, which one in memory lacks
        assert len(asked().run_requests) == 1
        instance.create_run_for_job(definitions.resolve_job_def(LOOP), status=dg.DagsterRunStatus.STARTED)
        assert not asked().run_requests
        assert "one is enough" in asked().skip_message


def test_crons_are_the_recipes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"automation\.timezone.*Mars"):
        deployment(tmp_path, ["automation.timezone=Mars"]).recipe()
    for cron in ("daily", "'0 3 * *'"):
        with pytest.raises(ValueError, match=r"automation\.iteration_cron"):
            deployment(tmp_path, [f"automation.iteration_cron={cron}"]).recipe()
    for cron in ("*/30 3 1-7 JAN,feb mon-fri", "0 0 1 1 *"):
        recipe = deployment(tmp_path, [f"automation.iteration_cron='{cron}'"]).recipe()
        assert recipe.automation.iteration_cron == cron


@pytest.mark.situation("23-schedules-and-summer-time", "right")
@pytest.mark.parametrize("first", [datetime(2026, 3, 27, tzinfo=UTC), datetime(2026, 10, 23, tzinfo=UTC)])
@pytest.mark.parametrize("cron", ["30 2 * * *", "0 3 * * *"])
def test_a_night_has_one_run_where_clocks_change(tmp_path: Path, cron: str, first: datetime) -> None:
    clock = ["automation.timezone=Europe/Berlin", f"automation.iteration_cron='{cron}'"]
    section = deployment(tmp_path, clock).recipe().automation
    jobs = {name: definitions.resolve_job_def(name) for name in (LOOP, "label_traces", "lake_upkeep")}
    by_clock = schedules_of(deployment(tmp_path, clock), section, jobs)[0]
    zone = by_clock.execution_timezone
    nights = schedule_execution_time_iterator(first.timestamp(), by_clock.cron_schedule, zone, ascending=True)
    assert [next(nights).day - first.day for _ in range(4)] == [0, 1, 2, 3]
