"""One writer, and a disk that is full."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline.training.checkpoints import only_writer, room

from .conftest import Run, is_whole, trained


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


def write_bytes(path: Path) -> None:
    path.write_bytes(bytes(2 << 20))


def write_safetensors(path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    save_file({"weight": torch.zeros(1 << 20)}, path)


def write_torch(path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"weight": torch.zeros(1 << 20)}, path)


@pytest.mark.parametrize("write", [write_bytes, write_safetensors, write_torch])
def test_whoever_meets_the_full_disk_is_explained(small_disk: Path, write: Callable[[Path], None]) -> None:
    with pytest.raises(ValueError, match="There is no room for another checkpoint"), room(small_disk):
        write(small_disk / "model")


def test_another_error_is_left_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), room(tmp_path):
        (tmp_path / "missing").read_bytes()
    with pytest.raises(RuntimeError, match="inline_container"), room(tmp_path):
        raise RuntimeError("[enforce fail at inline_container.cc] on a disk with room")


@pytest.mark.slow
def test_an_attempt_waits_for_the_one_that_it_replaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with held(tmp_path) as holder:
        monkeypatch.setattr("time.sleep", lambda _: holder.kill() or holder.wait())
        with only_writer(tmp_path, 1):
            assert holder.returncode


@pytest.mark.parametrize(("free", "error"), [((16 << 20) - 1, ValueError), (16 << 20, RuntimeError)])
def test_a_disk_of_16_mib_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, error: type[Exception]
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(error), room(tmp_path):
        raise RuntimeError("[enforce fail at inline_container.cc]")


@pytest.mark.slow
def test_a_limit_on_file_size_counts_as_a_full_disk(tmp_path: Path) -> None:
    code = f"""
import resource
from pathlib import Path
from pipeline.recipe import Checkpoints
from pipeline.training.checkpoints import Checkpointer
from pipeline.training.checkpoints.manifest import Origin
root = Path({str(tmp_path)!r})
saved = root / "trl"
saved.mkdir()
(saved / "weights").write_bytes(bytes(1000))
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    Checkpointer(root / "checkpoints", Origin("p", 1), 1, Checkpoints(), print).commit(saved, 5, None)
except ValueError as error:
    print("said:", error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "said: There is no room for another checkpoint" in done.stdout
