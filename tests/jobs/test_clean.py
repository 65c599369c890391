"""`make clean`, on a terminal and without one."""

import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The Makefile and the command, with what a few iterations leave."""
    for name in ("Makefile", "jobs/__init__.py", "jobs/clean.py", "pipeline/__init__.py", "pipeline/core/layout.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for name in (
        "data/audit/log.jsonl",
        "data/erasures/p.json",
        "data/traces/erased.json",
        "data/iterations/1/model",
        ".dagster/workers/1.log",
    ):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def make_clean(clone: Path, *arguments: str, stdin: int = subprocess.DEVNULL) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "clean", f"PYTHON={sys.executable}", *arguments],
        cwd=clone,
        env={"PATH": os.environ["PATH"]},
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def typed(clone: Path, text: str) -> subprocess.CompletedProcess[str]:
    """What happens when somebody types the text on a terminal."""
    controller, terminal = pty.openpty()
    try:
        os.write(controller, text.encode())
        return make_clean(clone, stdin=terminal)
    finally:
        os.close(controller)
        os.close(terminal)


def contents(clone: Path) -> set[str]:
    return {str(p.relative_to(clone)) for p in clone.rglob("*") if p.is_file() and p.parts[-2] != "__pycache__"}


def is_clean(clone: Path) -> bool:
    """Everything is gone but what answers for the data, which lies together."""
    names = ["audit/log.jsonl", "erasures/p.json", "traces/erased.json"]
    kept = [next(clone.glob("kept-*")) / name for name in names]
    return contents(clone) == {
        "Makefile",
        "jobs/__init__.py",
        "jobs/clean.py",
        "pipeline/__init__.py",
        "pipeline/core/layout.py",
        *(str(file.relative_to(clone)) for file in kept),
    } and [file.read_text() for file in kept] == [f"data/{name}" for name in names]


def test_clean_without_a_terminal_refuses(clone: Path) -> None:
    before = contents(clone)
    done = make_clean(clone)
    assert done.returncode != 0
    assert "make clean CONFIRM=yes" in done.stdout
    assert "iterations" in done.stdout
    assert contents(clone) == before


def test_clean_without_a_terminal_takes_a_confirmation(clone: Path) -> None:
    done = make_clean(clone, "CONFIRM=yes")
    assert done.returncode == 0, done.stdout
    assert is_clean(clone)
    assert "nothing to remove" in make_clean(clone).stdout


@pytest.mark.parametrize("text", ["\n", "yes\n", "\x04"])
def test_clean_on_a_terminal_wants_the_word(clone: Path, text: str) -> None:
    before = contents(clone)
    done = typed(clone, text)
    assert done.returncode != 0
    assert 'Type "delete"' in done.stdout
    assert contents(clone) == before


def test_clean_on_a_terminal_removes_what_it_showed(clone: Path) -> None:
    done = typed(clone, "delete\n")
    assert done.returncode == 0, done.stdout
    assert is_clean(clone)


def test_clean_refuses_while_a_worker_runs(clone: Path) -> None:
    before = contents(clone)
    with (clone / ".dagster/workers/1.log").open("ab") as log, subprocess.Popen(["sleep", "600"], stdout=log) as worker:
        try:
            done = make_clean(clone, "CONFIRM=yes")
        finally:
            worker.kill()
    assert done.returncode != 0
    assert f"{worker.pid}  sleep 600" in done.stdout
    assert contents(clone) == before


def test_clean_leaves_what_a_link_points_to(clone: Path) -> None:
    elsewhere = (clone / "data").rename(clone.with_name(f"{clone.name}-elsewhere"))
    (clone / "data").symlink_to(elsewhere)
    done = make_clean(clone, "CONFIRM=yes")
    assert done.returncode == 0, done.stdout
    assert not (clone / "data").is_symlink()
    assert (elsewhere / "audit" / "log.jsonl").exists()
    assert (elsewhere / "iterations/1/model").exists()
