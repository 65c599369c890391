"""Hosts on one data root: seen by their locks, taken away once dead, and refused where the locks are not shared."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline import at_work as module
from pipeline import layout
from pipeline.at_work import at_work, this_process
from pipeline.gateway.__main__ import serve
from pipeline.gateway.settings import GatewaySettings
from pipeline.storage import Store

OTHER_HOST = """
import fcntl, sys
from pathlib import Path
from pipeline import at_work as module
from pipeline.storage import Store

if sys.argv[2] == "unshared":  # a mount whose locks stay on the host
    fcntl.flock = lambda descriptor, how: None
module.BEAT_S = 0.05
host = module.this_process().model_copy(update={"host": "node-b", "boot": sys.argv[3] or module.this_process().boot})
with module.at_work(Store(Path(sys.argv[1])), host):
    print("at work", flush=True)
    sys.stdin.read()
"""


@contextmanager
def other_host(root: Path, locks: str, boot: str = "another boot") -> Generator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", OTHER_HOST, str(root), locks, boot]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "at work\n"
        try:
            yield process
        finally:
            process.stdin.close()


def left(root: Path) -> list[str]:
    return sorted(path.name.partition("-")[0] for path in (root / "at_work").glob("*.json"))


def test_a_host_whose_locks_are_seen_is_let_be(tmp_path: Path) -> None:
    with other_host(tmp_path, "shared"):
        with at_work(Store(tmp_path)):
            assert len(left(tmp_path)) == 2
        assert left(tmp_path) == ["node"]
    assert left(tmp_path) == []


def test_a_host_whose_locks_are_not_seen_is_refused(tmp_path: Path) -> None:
    with other_host(tmp_path, "unshared"):
        with pytest.raises(ValueError, match=r"node-b \(process \d+\) is at work on .*its locks are not seen"):
            at_work(Store(tmp_path)).__enter__()
        assert left(tmp_path) == ["node"], "who was refused leaves nothing"


@pytest.mark.parametrize("boot", ["another boot", ""])
def test_what_a_killed_host_left_is_taken_away(boot: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEAD_AFTER_S", 0.3 if boot else 600.0)
    with other_host(tmp_path, "shared", boot) as process:
        process.kill()
        process.wait()
        assert left(tmp_path) == ["node"]
        with at_work(Store(tmp_path)):
            assert len(left(tmp_path)) == 1


def test_a_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(descriptor: int, how: int) -> None:
        raise OSError(os.EX_OSERR, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(ValueError, match="file system without locks"):
        at_work(Store(tmp_path)).__enter__()
    assert left(tmp_path) == []
    assert this_process().start


def test_a_full_disk_is_refused_with_what_to_do(tmp_path: Path) -> None:
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n" + OTHER_HOST
    done = subprocess.run(
        [sys.executable, "-c", full, tmp_path, "shared", ""], capture_output=True, text=True, check=False
    )
    assert "ValueError: There is no room in" in done.stderr and "type the same command again" in done.stderr
    assert left(tmp_path) == []


def test_a_gateway_beside_an_unseen_host_is_refused(tmp_path: Path) -> None:
    with other_host(tmp_path, "unshared"):
        with pytest.raises(ValueError, match=r"is at work on .*its locks are not seen"):
            serve(GatewaySettings(root=str(tmp_path), model_name="demo", port=0))
        assert not (tmp_path / layout.gateway("demo")).exists() and left(tmp_path) == ["node"]
