"""`pt clean`: what goes, what stays, and when nothing does."""

import subprocess
import sys
from pathlib import Path

import pytest

from jobs.clean import main
from tests.loop import ROOT

KEPT = tuple(
    f"{root}/{name}" for root in ("data", "data/own", "big") for name in ("audit/log.jsonl", "erasures/p.json")
)
SUITES = ("data/own/suite.jsonl", "data/suites/mine.jsonl")
"""Written by hand."""
LEFT = (
    *(*KEPT, "data/own/traces/erased.json", *SUITES, "data/iterations/1/model", "big/lake/catalog.db"),
    *("data/suites/arithmetic-seed-11-items-400.jsonl", ".dagster/workers/1.log"),
)
MOVED = {*KEPT, "data/own/traces/erased.json"}


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with what iterations on three data roots leave, one of them within another."""
    for name in LEFT:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(clone: Path) -> set[str]:
    return {str(path.relative_to(clone)) for path in clone.rglob("*") if path.is_file()}


def is_clean(clone: Path) -> bool:
    """Everything is gone but what answers for the data, which lies together, and what no run wrote."""
    (kept,) = clone.glob("kept-*")
    assert all((kept / name).read_text() == name for name in MOVED)
    return contents(clone) == {*SUITES, *(f"{kept.name}/{name}" for name in MOVED)}


def test_what_was_shown_goes_once_it_is_confirmed(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == main(["--confirm", "y"]) == 1
    output = capsys.readouterr().out
    assert "Data roots: big, data, data/own\n" in output and "CONFIRM=yes" in output and contents(clone) == {*LEFT}
    assert main(["--confirm", "yes"]) == 0 and is_clean(clone)
    assert "Left, for no run wrote it: data/suites, data/own/suite.jsonl" in capsys.readouterr().out
    assert main(["--confirm", "yes"]) == 0 and "nothing to remove" in capsys.readouterr().out


def test_clean_refuses_while_a_worker_runs(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (clone / ".dagster/workers/1.log").open("ab") as log, subprocess.Popen(["sleep", "600"], stdout=log) as worker:
        log.close()
        try:
            assert main(["--confirm", "yes"]) == 1
        finally:
            worker.kill()
    assert f"{worker.pid}  sleep 600" in capsys.readouterr().out
    assert contents(clone) == {*LEFT}


def test_clean_leaves_what_a_link_points_to(clone: Path) -> None:
    elsewhere = (clone / "data").rename(clone.with_name(f"{clone.name}-elsewhere"))
    (clone / "data").symlink_to(elsewhere)
    assert main(["--confirm", "yes"]) == 0
    assert not (clone / "data").is_symlink()
    assert (elsewhere / "audit" / "log.jsonl").exists() and (elsewhere / "iterations/1/model").exists()


def test_no_environment_is_needed(clone: Path) -> None:
    command = [sys.executable, "-S", "-m", "jobs.clean", "--confirm", "yes"]
    assert subprocess.run(command, env={"PYTHONPATH": str(ROOT)}, check=False).returncode == 0
    assert is_clean(clone)
