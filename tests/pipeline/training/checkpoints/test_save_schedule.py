import pytest

from pipeline.recipe import Checkpoints
from pipeline.training.checkpoints import SaveSchedule


def test_steps_decide_without_a_mean_time_between_interruptions() -> None:
    cadence = SaveSchedule(Checkpoints(every_steps=10))
    cadence.saved(8.0)
    assert [step for step in range(1, 31) if cadence.due(step, 1e9)] == [10, 20, 30]
    assert cadence.interval_s is None


def test_steps_decide_until_a_save_was_measured() -> None:
    cadence = SaveSchedule(Checkpoints(every_steps=10, interruption_every_s=3600))
    assert (cadence.due(9, 1e9), cadence.due(10, 0.0)) == (False, True)
    cadence.saved(8.0)
    assert cadence.interval_s == pytest.approx(240.0)  # sqrt(2 x 8 x 3600)
    assert (cadence.due(10, 239.9), cadence.due(11, 240.0)) == (False, True)


def test_one_slow_save_does_not_stretch_the_interval() -> None:
    cadence = SaveSchedule(Checkpoints(interruption_every_s=3600))
    for seconds in (8.0, 8.0, 500.0, 8.0):
        cadence.saved(seconds)
    assert cadence.interval_s == pytest.approx(240.0)
    for _ in range(3):
        cadence.saved(2.0)
    assert cadence.interval_s == pytest.approx(120.0)


def test_save_longer_than_the_time_between_interruptions() -> None:
    cadence = SaveSchedule(Checkpoints(interruption_every_s=60))
    cadence.saved(600.0)
    assert cadence.interval_s == 60


@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
def test_a_save_takes_some_time(seconds: float) -> None:
    with pytest.raises(AssertionError):
        SaveSchedule(Checkpoints()).saved(seconds)
    SaveSchedule(Checkpoints()).saved(0.0)
