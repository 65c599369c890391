"""SIGKILL at random instants of a process that saves as fast as it can."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def killed(folder: Path, kills: int, kind: str, steps: int = 0) -> dict[str, int]:
    script = Path(__file__).with_name("kills.py")
    command = [sys.executable, str(script), str(folder), str(kills), "7", kind, str(steps)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_kill_leaves_the_last_commit_or_the_next(tmp_path: Path) -> None:
    account = killed(tmp_path, 25, "committed", steps=10)
    assert account["steps"] >= 10  # else the kills met nothing but starts
    assert (account["torn"], account["back"]) == (0, 0)


def test_a_kill_leaves_no_half_of_a_checkpoint_in_the_mirror(tmp_path: Path) -> None:
    account = killed(tmp_path, 10, "mirrored", steps=4)
    assert account["steps"] >= 4
    assert account["torn"] == 0


def test_the_same_kills_tear_what_is_written_in_place(tmp_path: Path) -> None:
    assert killed(tmp_path, 10, "plain")["torn"] > 0
