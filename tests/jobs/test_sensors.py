import time
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
from jobs.preference_tuning import DRIVE_FOR_TAG
from jobs.sensors import champion_changed, rollout_due
from k8s.attempts import GangAttempts
from pipeline.core.storage import ModelRef, Store
from pipeline.rollout.decision import RolloutDecision, decide
from pipeline.rollout.fold import read_state
from pipeline.rollout.propose import ChampionState
from pipeline.rollout.router import RolloutPorts
from tests.loop import deployment
from tests.opened import open_rollout
from tests.pipeline.rollout.local_router import LocalRouter

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
        nullcontext(instance) if instance else dg.DagsterInstance.ephemeral() as used,
        dg.build_sensor_context(instance=used, cursor=cursor) as context,
    ):
        result = sensor.evaluate_tick(context)
    return list(result.run_requests or []), result.cursor


OTHERS = ("traces.source={kind: otel, uri: /nowhere}",)


def looked_at(
    instance: dg.DagsterInstance, folder: Path, cursor: str | None, overrides: tuple[str, ...] = OTHERS
) -> tuple[str | dg.RunRequest, str | None]:
    """Why a tick of `rollout_due` skips, or the run that it asks for; and the cursor."""
    with dg.build_sensor_context(instance=instance, cursor=cursor) as context:
        found = rollout_due(context, deployment(folder, overrides))
        assert not isinstance(found, list)
        return found.skip_message or "" if isinstance(found, dg.SkipReason) else found, context.cursor


def test_the_sensor_looks_itself_and_a_change_is_shown_once(tmp_path: Path) -> None:
    settings = deployment(tmp_path, OTHERS)
    store, name = settings.store(), "arithmetic"
    with dg.DagsterInstance.ephemeral() as instance:
        assert looked_at(instance, tmp_path, None)[0] == "No rollout to look after, idle: "
        rollout = open_rollout(settings, tmp_path, time.time())
        found, cursor = looked_at(instance, tmp_path, None)
        assert isinstance(found, dg.RunRequest) and (found.run_key, found.tags) == (cursor, {"rollout": rollout})
        for looks in (2, 3):
            found, cursor = looked_at(instance, tmp_path, cursor)
            assert "gated at 0%: no server answers for" in str(found)
            assert read_state(store, name).watch.looks == looks
        run = instance.create_run_for_job(
            definitions.resolve_job_def("canary_rollout"), status=dg.DagsterRunStatus.STARTED
        )
        assert looked_at(instance, tmp_path, cursor) == ("A look is under way.", cursor)
        instance.report_run_canceled(run)
        decision = RolloutDecision(action="pause", reason="not today", by="ann")
        decide(RolloutPorts(store, name, LocalRouter(store, name), lambda state: None), decision, time.time())
        found, cursor = looked_at(instance, tmp_path, cursor)
        assert isinstance(found, dg.RunRequest) and "event" in str(found.run_key)
        epoch = read_state(store, name).epoch
        assert "held at 0%: not today" in str(looked_at(instance, tmp_path, cursor)[0])
        assert read_state(store, name).epoch == epoch, "nothing more is to be said of it"


def test_looks_that_take_long_are_runs_that_look_on(tmp_path: Path) -> None:
    settings = deployment(tmp_path)
    open_rollout(settings, tmp_path, time.time())
    with dg.DagsterInstance.ephemeral() as instance:
        for _ in range(2):
            found, _ = looked_at(instance, tmp_path, None, ())
            assert isinstance(found, dg.RunRequest) and found.tags[DRIVE_FOR_TAG] == "900"
        assert read_state(settings.store(), "arithmetic").epoch == 1


@pytest.mark.parametrize(
    ("tags", "overrides", "asks"),
    [({"iteration": "0001-abc"}, [CLUSTER], True), ({}, [CLUSTER], False), ({"iteration": "0001-abc"}, [], False)],
)
def test_a_cancelled_run_of_a_gang_asks_for_the_gangs_end(
    tags: dict[str, str], overrides: list[str], asks: bool, tmp_path: Path
) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
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
    with dg.DagsterInstance.ephemeral() as instance:
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
    with dg.DagsterInstance.ephemeral() as instance:
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
    with dg.DagsterInstance.ephemeral() as instance:
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
