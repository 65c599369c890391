"""A checkpoint's manifest, its removal, and when the next one is saved."""

import math
from pathlib import Path

import pytest

from pipeline.recipe import Checkpoints
from pipeline.training.checkpoints import checkpointer
from pipeline.training.checkpoints.checkpointer import SaveSchedule
from pipeline.training.checkpoints.manifest import CheckpointManifest, Origin, checked, written

from .conftest import trained

ORIGIN = Origin("p", 2)


def manifest(score: float | None = 0.7109375) -> CheckpointManifest:
    files = {"a.safetensors": "0f" * 32, "b/c.pt": "1e" * 32}
    return CheckpointManifest(plan_digest="p", step=120, world_size=2, score=score, files=files)


def test_what_is_written_comes_back_and_a_part_of_it_does_not() -> None:
    for score in (None, 0.1 + 0.2, -math.inf):
        assert checked(written(manifest(score)), ORIGIN, 120) == manifest(score)
    assert math.isnan(checked(written(manifest(math.nan)), ORIGIN, 120).score or 0.0)
    for size in range(len(whole := written(manifest()).rstrip())):
        with pytest.raises(ValueError):
            checked(whole[:size], ORIGIN, 120)


def test_a_removal_that_is_cut_leaves_nothing_under_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = trained(tmp_path / "step-000005", 5)

    def cut(path: Path, ignore_errors: bool = False) -> None:
        if path.exists():
            next(path.iterdir()).unlink()
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpointer.shutil, "rmtree", cut)
        with pytest.raises(KeyboardInterrupt):
            checkpointer.remove(folder)
    assert not folder.exists()
    assert checkpointer.published(tmp_path) == []
    checkpointer.Checkpointer(tmp_path, Origin("0", 1), Checkpoints(), print)
    assert list(tmp_path.iterdir()) == []


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
    cadence.saved(600.0)
    longer = SaveSchedule(Checkpoints(interruption_every_s=60))
    longer.saved(600.0)
    assert longer.interval_s == 60, "never longer than the time between interruptions"
