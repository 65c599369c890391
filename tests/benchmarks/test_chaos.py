"""That a difference, a process that stays and a broken record would be seen."""

import os
import subprocess
import sys
from pathlib import Path

import psutil

from benchmarks.chaos import MARK, ChaosDeployment, violations
from pipeline.core import layout


def test_a_difference_and_a_process_that_stays_are_seen(tmp_path: Path) -> None:
    deployment = ChaosDeployment(tmp_path / "chaos", "chaos")
    assert list(violations(deployment, {}, ends_within_s=0)) == []
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], env={**os.environ, MARK: "chaos"}, stdin=subprocess.PIPE
    ) as left:
        assert [each.pid for each in deployment.processes()] == [left.pid]
        assert psutil.Process(left.pid).is_running()
        lines = list(violations(deployment, {"verdict": "PASS"}, ends_within_s=0))
        left.communicate(b"\n")
    assert lines[0] == "verdict: None instead of PASS"
    assert lines[1].startswith("left running: ") and len(lines) == 2


def test_a_record_that_a_kill_broke_is_one_line(tmp_path: Path) -> None:
    deployment = ChaosDeployment(tmp_path, tmp_path.name)
    latest = deployment.store.path(layout.LATEST)
    latest.parent.mkdir(parents=True, exist_ok=True)
    latest.write_text("{")
    (line,) = violations(deployment, {"verdict": "PASS", "version": 1}, ends_within_s=0)
    assert line.startswith("what came out cannot be read: ") and latest.name in line
