from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from assets.environment import DATA_ROOT_TAG
from assets.resources import Deployment
from jobs import gangs, sensors
from jobs.definitions import definitions
from jobs.gangs import UNFOLLOWED_S, gang_held, gang_orphaned
from jobs.sensors import champion_changed, rollout_due
from k8s.attempts import GangAttempts
from pipeline.core.storage import ModelRef, Store
from pipeline.rollout.propose import ChampionState
from pipeline.rollout.record import Phase, RolloutState
from tests.loop import deployment

pytestmark = pytest.mark.slow

CLUSTER = "compute.kubernetes={image: 'trainer@sha256:0', instance_type: cpu}"


def tick(
    evaluate: Callable[[dg.SensorEvaluationContext, Deployment], object],
    folder: Path,
    cursor: str | None = None,
    instance: dg.DagsterInstance | None = None,
    overrides: tuple[str, ...] = (),
) -> tuple[list[dg.RunRequest], str | None]:
    """What one tick of a sensor asks for, and the cursor that it leaves."""
    settings = deployment(folder, list(overrides))
    sensor = dg.SensorDefinition(evaluation_fn=lambda context: evaluate(context, settings), job_name="any")
    with (
        nullcontext(instance) if instance else dg.instance_for_test() as used,
        dg.build_sensor_context(instance=used, cursor=cursor) as context,
    ):
        result = sensor.evaluate_tick(context)
    return list(result.run_requests or []), result.cursor


def test_an_active_rollout_gets_a_look_also_a_held_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for phase in (Phase.IDLE, Phase.PROMOTED):
        monkeypatch.setattr(sensors, "read_state", lambda *_, phase=phase: RolloutState(phase=phase))
        assert tick(rollout_due, tmp_path)[0] == []
    monkeypatch.setattr(sensors, "read_state", lambda *_: RolloutState(phase=Phase.HELD))
    job = definitions.resolve_job_def("canary_rollout")
    with dg.instance_for_test() as instance:
        instance.create_run_for_job(job, status=dg.DagsterRunStatus.SUCCESS)
        requests, _ = tick(rollout_due, tmp_path, instance=instance)
        assert len(requests) == 1
        instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED)
        assert tick(rollout_due, tmp_path, instance=instance)[0] == []


@pytest.mark.parametrize(
    ("tags", "overrides", "asks"),
    [({"iteration": "0001-abc"}, [CLUSTER], True), ({}, [CLUSTER], False), ({"iteration": "0001-abc"}, [], False)],
)
def test_a_cancelled_run_of_a_gang_asks_for_the_gangs_end(
    tags: dict[str, str], overrides: list[str], asks: bool, tmp_path: Path
) -> None:
    with dg.instance_for_test() as instance:
        run = instance.create_run_for_job(
            definitions.resolve_job_def("preference_tuning"), tags=tags, status=dg.DagsterRunStatus.STARTED
        )
        instance.report_run_canceled(run)
        (entry,) = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.RUN_CANCELED)
        with dg.build_run_status_sensor_context(
            sensor_name="gang_orphaned",
            dagster_event=entry.get_dagster_event(),
            dagster_instance=instance,
            dagster_run=run,
        ) as context:
            asked = gang_orphaned(context, deployment(tmp_path, overrides))
    if not asks:
        assert isinstance(asked, dg.SkipReason)
        return
    assert isinstance(asked, dg.RunRequest)
    assert asked.run_key == run.run_id
    wanted = definitions.resolve_job_def("delete_orphaned_gang")
    config = dg.validate_run_config(wanted, asked.run_config)["ops"]["delete_gang"]["config"]
    assert config == {"iteration": "0001-abc", "held_only": False}


def test_a_new_champion_asks_for_one_iteration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests, cursor = tick(champion_changed, tmp_path)
    assert requests == []  # the first tick only records
    assert tick(champion_changed, tmp_path, cursor) == ([], cursor)
    promoted = ChampionState(model=ModelRef(uri="", digest="new"), version=1, promotions=1)
    monkeypatch.setattr(sensors.Deployment, "champion", lambda _: promoted)
    (request,), after = tick(champion_changed, tmp_path, cursor)
    assert request.run_key == "champion new since the beginning, attempt 1"
    assert after == cursor, "no run for it has succeeded"


def asked_again(
    instance: dg.DagsterInstance, folder: Path, champion: ChampionState, cursor: str | None
) -> tuple[list[dg.RunRequest], str | None]:
    """What a tick asks for while this champion serves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sensors.Deployment, "champion", lambda _: champion)
        return tick(champion_changed, folder, cursor, instance, ("automation.quiet_s=0",))


def run_of(instance: dg.DagsterInstance, folder: Path, request: dg.RunRequest, status: dg.DagsterRunStatus) -> None:
    """The run that a request makes: its tags are the job's and its own."""
    tags = {DATA_ROOT_TAG: str(deployment(folder).store().root), **request.tags}
    instance.create_run_for_job(definitions.resolve_job_def("preference_tuning"), tags=tags, status=status)


def test_a_failed_run_and_a_champion_that_is_back_are_asked_for(tmp_path: Path) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    champions = [
        ChampionState(model=ModelRef(uri="", digest=digest), version=1, promotions=1, since=at + timedelta(days=day))
        for day, digest in enumerate("ABA")
    ]
    keys: list[str | None] = []
    with dg.instance_for_test() as instance:
        _, cursor = asked_again(instance, tmp_path, champions[0], None)
        for champion in champions[1:]:
            for status in (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.SUCCESS):
                (request,), cursor = asked_again(instance, tmp_path, champion, cursor)
                keys.append(request.run_key)
                run_of(instance, tmp_path, request, status)
            before = cursor
            requests, cursor = asked_again(instance, tmp_path, champion, cursor)
            assert requests == [] and cursor != before, "a run has succeeded, and the cursor moves"
            assert asked_again(instance, tmp_path, champion, cursor) == ([], cursor)
    assert len({*keys}) == 4, keys
    assert [key[-1] for key in keys if key] == ["1", "2", "1", "2"]


def test_a_run_that_a_person_cancelled_is_not_asked_for_again(tmp_path: Path) -> None:
    champion = ChampionState(model=ModelRef(uri="", digest="B"), version=1, promotions=1)
    with dg.instance_for_test() as instance:
        (request,), _ = asked_again(instance, tmp_path, champion, "another")
        run_of(instance, tmp_path, request, dg.DagsterRunStatus.STARTED)
        assert asked_again(instance, tmp_path, champion, "another")[0] == [], "it is under way"
        instance.report_run_canceled(instance.get_runs()[0])
        requests, cursor = asked_again(instance, tmp_path, champion, "another")
        assert requests == [] and cursor != "another"


def test_an_open_gang_without_a_run_is_asked_for_after_an_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Again an hour later: what ran then may be held now."""
    store = Store(deployment(tmp_path).recipe().data_root)
    GangAttempts(store, "0001-abc").current(0.0, lambda number: "train-1")
    clock = [1_700_000_000.0]
    monkeypatch.setattr(gangs.time, "time", lambda: clock[0])
    asked: list[int] = []
    cursor = None
    with dg.instance_for_test() as instance:
        for passed in (0.0, UNFOLLOWED_S - 1, 2.0, UNFOLLOWED_S - 1, 2.0):
            clock[0] += passed
            requests, cursor = tick(gang_held, tmp_path, cursor, instance, (CLUSTER,))
            asked.append(len(requests))
        assert asked == [0, 0, 1, 0, 1]
        config = {"iteration": "0001-abc", "held_only": True}
        assert requests[0].run_config["ops"]["delete_gang"]["config"] == config
        job = definitions.resolve_job_def("preference_tuning")
        for tags in ({"iteration": "0001-abc"}, {}):  # follows it; does not say yet what it is to follow
            run = instance.create_run_for_job(job, tags=tags, status=dg.DagsterRunStatus.STARTED)
            clock[0] += 2 * UNFOLLOWED_S
            assert tick(gang_held, tmp_path, cursor, instance, (CLUSTER,))[0] == []
            instance.report_run_canceled(run)
        assert tick(gang_held, tmp_path, None, instance)[0] == [], "no cluster"
