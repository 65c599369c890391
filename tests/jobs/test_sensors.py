from pathlib import Path

import dagster as dg
import pytest

from jobs import sensors
from jobs.definitions import definitions
from jobs.sensors import champion_changed, rollout_due
from pipeline.registry.propose import ChampionState
from pipeline.registry.record import Phase, RolloutState
from pipeline.storage import ModelRef
from tests.loop import deployment


def tick(
    sensor: dg.SensorDefinition, folder: Path, cursor: str | None = None
) -> tuple[list[dg.RunRequest], str | None]:
    """What one tick of a sensor asks for, and the cursor that it leaves."""
    with (
        dg.instance_for_test() as instance,
        dg.build_sensor_context(
            instance=instance,
            cursor=cursor,
            resources={"deployment": deployment(folder)},
            repository_def=definitions.get_repository_def(),
        ) as context,
    ):
        found = sensor.evaluate_tick(context)
    return list(found.run_requests or []), found.cursor


@pytest.mark.parametrize(
    ("phase", "asks"),
    [
        (Phase.IDLE, False),
        (Phase.OBSERVING, True),
        (Phase.SHIFTING, True),
        (Phase.HELD, False),
        (Phase.PROMOTED, False),
    ],
)
def test_an_active_rollout_gets_a_look(
    phase: Phase, asks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sensors, "read_state", lambda *_: RolloutState(phase=phase))
    requests, _ = tick(rollout_due, tmp_path)
    assert bool(requests) == asks


def test_a_new_champion_asks_for_one_iteration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests, cursor = tick(champion_changed, tmp_path)
    assert requests == []  # the first tick only records
    assert tick(champion_changed, tmp_path, cursor) == ([], cursor)
    promoted = ChampionState(model=ModelRef(uri="", digest="new"), version=1, promotions=1)
    monkeypatch.setattr(sensors.Deployment, "champion", lambda _: promoted)
    (request,), after = tick(champion_changed, tmp_path, cursor)
    assert (request.run_key, after) == ("new", "new")
