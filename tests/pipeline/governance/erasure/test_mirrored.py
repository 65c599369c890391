"""Copies of checkpoints that an erasure reaches, however it is interrupted."""

import fcntl
from pathlib import Path

import pytest

from pipeline.core.storage import Store
from pipeline.governance.erasure import blocked_iteration, mirrored
from pipeline.rollout.record import ErasureBlock, block
from pipeline.training.checkpoints.mirror import CLAIM, mark_of, place_of, remember
from pipeline.training.journal import TrainingJournal
from tests.contexts import KEYS
from tests.pipeline.governance.erasure.conftest import BOB, NOW, World
from tests.pipeline.governance.erasure.looking import erase

ITERATION, PLAN = "itr-0123", "p" * 64
FOLDER = PLAN[:12]
STEPS = ("step-000005", "step-000010")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A training that saved something."""
    result = Store(tmp_path / "data", KEYS)
    TrainingJournal(result.path("iterations", ITERATION, "training", "journal.jsonl")).add("saved", 5)
    return result


def uploaded(root: Path) -> Path:
    for step in STEPS:
        (root / FOLDER / step).mkdir(parents=True)
        (root / FOLDER / step / "weights").write_text("learned")
    (root / FOLDER / CLAIM).write_text("{}")
    return root / FOLDER


def left(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.slow
def test_copies_of_what_learned_are_gone_and_others_stay(world: World) -> None:
    place = world.place
    proof = erase(place)
    assert proof.remains == () and proof.outside == ()
    for each in (world.first, world.third):
        folder = place.mirrored(each)
        assert left(folder) == {CLAIM, mark_of(each.id)}
        assert f"{folder.relative_to(place.root)}/step-000001" in proof.places["copies of checkpoints in mirrors"]
    assert left(place.mirrored(world.second)) == {CLAIM, "step-000001"}, "it never saw her rows"
    assert erase(place).places == {}
    assert place.store.path(world.first.path("training/checkpoints/step-000001")).exists(), "models here are blocked"
    late = place.mirrored(world.first) / "step-000009"
    late.mkdir()
    (late / "weights").touch()  # of a killed trainer
    assert blocked_iteration(place.store, place.tracking_uri, world.first, NOW)
    assert not (late / "weights").exists()
    assert erase(place, BOB).remains == () and left(place.mirrored(world.second)) == {CLAIM, mark_of(world.second.id)}


def test_a_mirror_that_is_not_mounted_is_not_called_clean(store: Store, tmp_path: Path) -> None:
    remember(store, ITERATION, place_of(str(tmp_path / "mirror"), PLAN))
    assert list(mirrored.remove(store, [ITERATION])) == []
    (line,) = mirrored.remains(store, [ITERATION])
    assert line.startswith(f"{tmp_path}/mirror/{FOLDER}: nothing of iteration {ITERATION}'s training is there")
    assert not (tmp_path / "mirror").exists(), "no mark is left where the disk is missing"
    folder = uploaded(tmp_path / "mirror")  # it is mounted
    assert mirrored.remains(store, [ITERATION]) == [] and left(folder) == {CLAIM, mark_of(ITERATION)}


def test_a_trainer_at_work_may_still_upload(store: Store, tmp_path: Path) -> None:
    uploaded(tmp_path / "mirror")
    remember(store, ITERATION, place_of(str(tmp_path / "mirror"), PLAN))
    with store.path("iterations", ITERATION, "training", "writer.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (line,) = mirrored.remains(store, [ITERATION])
        assert "is being trained, and an upload may end after this" in line
    assert mirrored.remains(store, [ITERATION]) == []


def test_a_store_without_its_driver_is_outside(store: Store) -> None:
    remember(store, ITERATION, place_of("carrier-pigeon://loft", PLAN))
    what = f"install its driver and forget again, or delete the checkpoints of iteration {ITERATION} there"
    assert mirrored.outside(store, [ITERATION]) == (f"carrier-pigeon://loft: {what}",)
    assert mirrored.remains(store, [ITERATION]) == []
    assert list(mirrored.remove(store, [ITERATION])) == []


def test_upkeep_clears_mirrors_of_blocked_trainings_again(store: Store, tmp_path: Path) -> None:
    folder, log = uploaded(tmp_path / "mirror"), list[str]()
    remember(store, ITERATION, place_of(str(tmp_path / "mirror"), PLAN))
    mirrored.tidy(store, log.append)
    assert set(STEPS) < left(folder), "nothing blocks it"
    block(store, ErasureBlock(proof="e", digests=(), iterations=(ITERATION,)))
    mirrored.tidy(store, log.append)
    assert left(folder) == {CLAIM, mark_of(ITERATION)}
    assert log == [f"{folder}/{step}, of a training that an erasure blocked, is deleted" for step in STEPS]
