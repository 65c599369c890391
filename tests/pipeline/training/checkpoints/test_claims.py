"""One writer: each start of a trainer claims its directory, and the newest claim alone writes. A full disk."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from pipeline.recipe import Checkpoints
from pipeline.training.checkpoints import Checkpointer, Superseded, only_writer, room
from pipeline.training.checkpoints.claims import claim, newest_claim
from pipeline.training.checkpoints.manifest import Origin
from pipeline.training.result import InvalidPlan

from .conftest import Run, is_whole, trained


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


@contextmanager
def held(root: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process is the writer."""
    code = (
        "import time; from pathlib import Path; from pipeline.training.checkpoints import only_writer\n"
        f"with only_writer(Path({str(root)!r})):\n"
        "    print('held', flush=True); time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield holder
        holder.kill()


def test_one_writer_and_its_lock_dies_with_it(tmp_path: Path) -> None:
    with held(tmp_path) as holder:
        with pytest.raises(ValueError, match="Another process is training"), only_writer(tmp_path):
            pass
        holder.kill()
        holder.wait()
    with only_writer(tmp_path), only_writer(tmp_path / "that" / "was" / "not" / "there"):
        pass


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if (
        shutil.which("mount") is None
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=False, capture_output=True
        ).returncode
    ):
        pytest.skip("a file system can only be mounted by root")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as stream, pytest.raises(OSError, match="No space left"):
        while True:
            stream.write(bytes(4096))


def test_full_disk_costs_no_older_checkpoint(small_disk: Path) -> None:
    run = Run(small_disk)
    run.save(5)
    saved = trained(small_disk / "trl" / "checkpoint-10", 10)
    fill(small_disk)
    with pytest.raises(ValueError, match=r"no room .*: 0 MiB are free .*lower training.checkpoints.keep_last"):
        run.checkpoints.commit(saved, 10, None)
    again = Run(small_disk)
    assert again.newest() == "step-000005"
    assert again.there() == ["step-000005"]
    (small_disk / "filler").unlink()
    assert is_whole(again.save(10))


def test_another_error_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError), room(tmp_path):
        (tmp_path / "missing").read_bytes()
    usage = shutil.disk_usage(tmp_path)
    torch_says = RuntimeError("[enforce fail at inline_container.cc]")
    for free, error in (((16 << 20) - 1, ValueError), (16 << 20, RuntimeError)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: usage._replace(free=free))
        with pytest.raises(error), room(tmp_path):
            raise torch_says


@pytest.mark.slow
def test_an_attempt_waits_for_the_one_that_it_replaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with held(tmp_path) as holder:
        monkeypatch.setattr("time.sleep", lambda _: holder.kill() or holder.wait())
        with only_writer(tmp_path, 1):
            assert holder.returncode
