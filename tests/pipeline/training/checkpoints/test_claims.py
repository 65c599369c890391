"""Each start of a trainer claims its directory, and the newest claim alone writes."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest

from pipeline.recipe import Checkpoints
from pipeline.training.checkpoints import Checkpointer, Superseded, only_writer
from pipeline.training.checkpoints.claims import claim, newest_claim
from pipeline.training.checkpoints.manifest import Origin
from pipeline.training.result import InvalidPlan

from .conftest import trained


def keeper(root: Path, fence: Callable[[], None]) -> Checkpointer:
    return Checkpointer(root / "checkpoints", Origin("p", 1), 1, Checkpoints(), print, fence)


def test_of_two_starts_under_one_attempt_the_later_writes(tmp_path: Path) -> None:
    """A queue starts a gang again under the same attempt, with the old pods still there."""
    first = claim(tmp_path, 1)
    first.check()
    second = claim(tmp_path, 1)
    second.check()
    with pytest.raises(Superseded, match=r"a later start has claimed it \(attempt 1\)"):
        first.check()


def test_a_later_attempt_keeps_the_folder(tmp_path: Path) -> None:
    second = claim(tmp_path, 2)
    with pytest.raises(InvalidPlan, match="Attempt 2 has claimed"):
        claim(tmp_path, 1)
    second.check()
    claim(tmp_path).check()  # by hand, where nobody counts the attempts
    assert len(list((tmp_path / "claims").iterdir())) == 1, "the older ones are gone"


def test_a_start_in_a_folder_that_was_cleared_is_another_one(tmp_path: Path) -> None:
    first = claim(tmp_path, 1)
    for file in (tmp_path / "claims").iterdir():
        file.unlink()
    with pytest.raises(Superseded, match="its claims were removed"):
        first.check()
    claim(tmp_path, 1).check()
    with pytest.raises(Superseded):
        first.check()


def test_of_starts_that_race_one_has_the_directory(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        claims = [*pool.map(lambda _: claim(tmp_path, 1), range(8))]
    newest = newest_claim(tmp_path)
    assert newest is not None
    assert [each.id for each in claims].count(newest.id) == 1
    for own in claims:
        with nullcontext() if own.id == newest.id else pytest.raises(Superseded):
            own.check()


def test_a_trainer_that_was_superseded_commits_no_checkpoint(tmp_path: Path) -> None:
    with only_writer(tmp_path, 1) as own:
        checkpoints = keeper(tmp_path, own.check)
        assert checkpoints.commit(trained(tmp_path / "a", 5), 5, None).is_dir()
        claim(tmp_path, 1)  # on another node, which believes this one dead
        with pytest.raises(Superseded, match="writes nothing more"):
            checkpoints.commit(trained(tmp_path / "b", 10), 10, None)
    assert [path.name for path in sorted((tmp_path / "checkpoints").glob("step-*"))] == ["step-000005"]


def test_a_trainer_superseded_within_a_commit_publishes_nothing(tmp_path: Path) -> None:
    own, looks = claim(tmp_path, 1), list[int]()

    def fence() -> None:
        looks.append(1)
        if len(looks) == 2:
            claim(tmp_path, 1)
        own.check()

    with pytest.raises(Superseded, match="writes nothing more"):
        keeper(tmp_path, fence).commit(trained(tmp_path / "a", 5), 5, None)
    assert list((tmp_path / "checkpoints").glob("step-*")) == []


def test_a_superseded_trainer_drops_no_checkpoint_either(tmp_path: Path) -> None:
    """The step is there already: nothing is published, and retention would follow."""
    checkpoints = keeper(tmp_path, claim(tmp_path, 1).check)
    checkpoints.commit(trained(tmp_path / "a", 5), 5, None)
    claim(tmp_path, 2)
    with pytest.raises(Superseded, match="writes nothing more"):
        checkpoints.commit(trained(tmp_path / "b", 5), 5, None)
    assert (tmp_path / "b").is_dir()
