import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.recipe import Checkpoints
from pipeline.training.checkpoints import checkpointer
from pipeline.training.checkpoints.checkpointer import SaveSchedule
from pipeline.training.checkpoints.manifest import MANIFEST, CheckpointManifest, Origin, checked, read, written

from .conftest import FILES, HARMS, PLAN, STATE, WEIGHTS, Run, is_whole, trained


def test_commit_publishes_whole_and_keeps_last_and_best(tmp_path: Path) -> None:
    run = Run(tmp_path, keep_last=2, keep_best=1)
    for step, score in ((5, 0.2), (10, 0.9), (15, 0.5), (20, None), (25, 0.4)):
        assert is_whole(run.save(step, score))
    assert run.there() == ["step-000010", "step-000020", "step-000025"]
    assert run.newest() == "step-000025"
    assert run.best() == "step-000010"
    assert not list((tmp_path / "trl").iterdir())
    assert run.said == []
    assert run.checkpoints.uploads is None, "there is no mirror to wait for"
    manifest = json.loads((run.root / "step-000010" / MANIFEST).read_text())
    assert {key: manifest[key] for key in ("plan_digest", "step", "world_size", "score")} == {
        "plan_digest": PLAN, "step": 10, "world_size": 1, "score": 0.9,
    }  # fmt: skip
    assert manifest["files"].keys() == set(FILES)


@pytest.mark.parametrize(
    ("name", "harm"), [(WEIGHTS, "flip"), (STATE, "empty"), (STATE, "remove"), (MANIFEST, "empty")]
)
def test_a_damaged_checkpoint_is_passed_over_by_name(tmp_path: Path, name: str, harm: str) -> None:
    Run(tmp_path).save(5)
    HARMS[harm](Run(tmp_path).save(10) / name)
    run = Run(tmp_path)
    assert run.newest() == "step-000005"
    assert len(run.said) == 1
    assert "step-000010 is passed over" in run.said[0]
    assert name in run.said[0]


def stray(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"another model")


def linked(folder: Path) -> None:
    elsewhere = folder.parents[1] / "elsewhere"
    (folder / WEIGHTS).rename(elsewhere)
    (folder / WEIGHTS).symlink_to(elsewhere)


def renamed(folder: Path) -> None:
    folder.rename(folder.with_name("step-000050"))


@pytest.mark.parametrize(
    ("saved_by", "harm", "reason"),
    [
        ({"plan": "other"}, None, "belongs to another plan"),
        ({"plan": "other", "world_size": 2}, None, "2 processes saved it, and now there are 1"),
        ({}, renamed, "says step 5"),
        ({}, stray, "pytorch_model.bin is not in its manifest"),
        ({}, linked, f"{WEIGHTS} is missing"),
    ],
)
def test_what_is_no_checkpoint_of_the_training_is_not_resumed(
    tmp_path: Path, saved_by: dict[str, Any], harm: Callable[[Path], None] | None, reason: str
) -> None:
    folder = Run(tmp_path, **saved_by).save(5)
    if harm is not None:
        harm(folder)
    run = Run(tmp_path)
    assert run.newest() is None
    assert reason in run.said[0]


@pytest.mark.parametrize("name", ["../outside", "/etc/hostname", "a/../../b", "", "a//b", "."])
def test_manifest_naming_a_file_outside_its_folder_is_refused(tmp_path: Path, name: str) -> None:
    folder = Run(tmp_path).save(5)
    true = read(folder, Origin(PLAN, 1))
    files = {name: true.files[WEIGHTS], STATE: true.files[STATE]}
    (folder / MANIFEST).write_bytes(written(true.model_copy(update={"files": files})))
    run = Run(tmp_path)
    assert run.newest() is None
    assert f"{name!r}, which is no file inside its folder" in run.said[0]


def test_a_whole_checkpoint_stands_when_its_step_comes_again(tmp_path: Path) -> None:
    run = Run(tmp_path)
    before = (run.save(5, 0.5) / MANIFEST).stat().st_ino
    assert (run.save(5, 0.7) / MANIFEST).stat().st_ino == before
    assert not (tmp_path / "trl" / "checkpoint-5").exists()


def test_damaged_checkpoint_takes_no_good_ones_place(tmp_path: Path) -> None:
    first = Run(tmp_path, keep_last=2, keep_best=0)
    first.save(5)
    (first.save(10) / STATE).unlink()
    second = Run(tmp_path, keep_last=2, keep_best=0)
    assert second.newest() == "step-000005"
    second.save(8)
    assert second.there() == ["step-000005", "step-000008", "step-000010"]
    second.save(12)
    assert second.there() == ["step-000008", "step-000012"]


def test_what_a_kill_left_on_its_way_in_or_out_is_cleared(tmp_path: Path) -> None:
    Run(tmp_path).save(5)
    for orphan in (".step-000005-removed", ".step-000010-fetched"):
        trained(tmp_path / "checkpoints" / orphan, 1)
    assert Run(tmp_path).there() == ["step-000005"]


def test_the_best_is_whole_and_not_nan(tmp_path: Path) -> None:
    nan, inf = float("nan"), float("inf")
    run = Run(tmp_path, keep_last=9)
    for step, score in ((1, None), (2, 0.5), (3, nan), (4, 0.7), (5, 0.7), (6, inf), (7, None)):
        run.save(step, score)
    assert run.best() == "step-000004"  # of equals the earlier
    HARMS["flip"](run.root / "step-000004" / WEIGHTS)
    HARMS["flip"](run.root / "step-000005" / WEIGHTS)
    assert run.best() == "step-000002"
    assert [line[11:22] for line in run.said] == ["step-000004", "step-000005"]
    HARMS["flip"](run.root / "step-000002" / WEIGHTS)
    assert run.best() == "step-000007"  # nothing tells the rest apart: the newest


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
