"""`pt clean`: what goes, what stays, and when nothing does."""

import subprocess
import sys
from pathlib import Path

import pytest

from jobs.clean import main
from tests.loop import ROOT

KEPT = ("audit/log.jsonl", "erasures/p.json", "traces/erased.json")
LEFT = (*(f"data/{name}" for name in KEPT), "data/iterations/1/model", ".dagster/workers/1.log")


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with what a few iterations leave."""
    for name in LEFT:
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(clone: Path) -> set[str]:
    return {str(path.relative_to(clone)) for path in clone.rglob("*") if path.is_file()}


def is_clean(clone: Path) -> bool:
    """Everything is gone but what answers for the data, which lies together."""
    (kept,) = clone.glob("kept-*")
    assert all((kept / name).read_text() == f"data/{name}" for name in KEPT)
    return contents(clone) == {f"{kept.name}/{name}" for name in KEPT}


def test_what_was_shown_goes_once_it_is_confirmed(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == main(["--confirm", "y"]) == 1
    output = capsys.readouterr().out
    assert "CONFIRM=yes" in output and "iterations" in output and contents(clone) == {*LEFT}
    assert main(["--confirm", "yes"]) == 0 and is_clean(clone)
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
