"""One writer: each start of a trainer claims its directory, and the newest claim alone writes."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from pipeline.core.storage import Store
from pipeline.recipe import Checkpoints
from pipeline.training.checkpoints.checkpointer import Checkpointer
from pipeline.training.checkpoints.claims import Superseded, claim, newest_claim, only_writer
from pipeline.training.checkpoints.manifest import Origin
from pipeline.training.result import InvalidPlan

from .conftest import trained


def keeper(root: Path, fence: Callable[[], None]) -> Checkpointer:
    return Checkpointer(root / "checkpoints", Origin("p", 1), Checkpoints(), print, fence)


def test_the_newest_claim_has_the_directory(tmp_path: Path) -> None:
    """A queue starts a gang again under the same attempt, with the old pods still there."""
    first = claim(tmp_path, 1)
    first.check()
    assert [path.name for path in (tmp_path / "claims").iterdir()] == ["000001.json"]
    claim(tmp_path, 1).check()
    assert [path.name for path in (tmp_path / "claims").iterdir()] == ["000002.json"]
    with pytest.raises(Superseded, match=r"a later start has claimed it \(attempt 1\)"):
        first.check()
    second = claim(tmp_path, 2)
    with pytest.raises(InvalidPlan, match="Attempt 2 has claimed"):
        claim(tmp_path, 1)
    for left in (1, 2):  # by starts that were killed before they removed it
        (tmp_path / "claims" / f"{left:06}.json").write_text('{"id": "other", "attempt": 1}')
    second.check()
    claim(tmp_path).check()  # by hand, where nobody counts the attempts
    (file,) = (tmp_path / "claims").iterdir()  # the older ones are gone
    file.unlink()
    with pytest.raises(Superseded, match="its claims were removed"):
        second.check()


def test_a_claim_that_goes_while_it_is_read_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its directory has a file of somebody else, too."""
    own, read, gone = claim(tmp_path), Store.read, [None]
    (tmp_path / "claims" / "note.json").write_text("no claim")
    monkeypatch.setattr(Store, "read", lambda *asked: gone.pop() if gone else read(*asked))
    own.check()
    assert not gone


def test_of_starts_that_race_one_has_the_directory(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        claims = [*pool.map(lambda _: claim(tmp_path, 1), range(8))]
    newest = newest_claim(tmp_path)
    assert newest is not None
    assert [each.id for each in claims].count(newest.id) == 1
    for own in claims:
        with nullcontext() if own.id == newest.id else pytest.raises(Superseded):
            own.check()


@pytest.mark.parametrize("looks", [1, 2])
def test_a_superseded_trainer_commits_no_checkpoint(looks: int, tmp_path: Path) -> None:
    """It is replaced before its commit, or within it."""
    own, left = claim(tmp_path, 1), [looks + 1]

    def fence() -> None:
        left[0] -= 1
        if not left[0]:
            claim(tmp_path, 1)
        own.check()

    with pytest.raises(Superseded, match="writes nothing more"):
        for step in (5, 10):
            keeper(tmp_path, fence).commit(trained(tmp_path / "a", step), step, None)
    assert len(list((tmp_path / "checkpoints").glob("step-*"))) == looks - 1


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
        "import time; from pathlib import Path; from pipeline.training.checkpoints.claims import only_writer\n"
        f"with only_writer(Path({str(root)!r})):\n"
        "    print('held', flush=True); time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        try:
            yield holder
        finally:
            holder.kill()


def test_one_writer_and_its_lock_dies_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: pytest.fail("nobody is to be waited for"))
    with held(tmp_path) as holder:
        before = newest_claim(tmp_path)
        with pytest.raises(ValueError, match="Another process is training"), only_writer(tmp_path):
            pass
        assert before is not None and newest_claim(tmp_path) == before
        holder.kill()
        holder.wait()
    with only_writer(tmp_path), only_writer(tmp_path / "that" / "was" / "not" / "there"):
        pass


@pytest.mark.slow
def test_an_attempt_waits_for_the_one_that_it_replaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its claim comes first, so that the other one gives way."""
    with held(tmp_path) as holder:
        waits: list[tuple[float, int]] = []

        def end(seconds: float) -> None:
            newest = newest_claim(tmp_path)
            waits.append((seconds, newest.attempt if newest else 0))
            holder.kill()
            holder.wait()

        monkeypatch.setattr("time.sleep", end)
        with only_writer(tmp_path, 1) as own:
            assert holder.returncode and waits == [(1, 1)]
            own.check()
