"""The simulated calendar of benchmarks/nights.py, in a process whose clock it may move."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SIX = "import json; from benchmarks.nights_calendar import calendar; print(json.dumps(calendar(6)))"


@pytest.mark.slow
@pytest.mark.variant
@pytest.mark.timeout(900)
def test_the_due_nights_train_through_outages() -> None:
    root = Path(__file__).parents[2]
    run = subprocess.run([sys.executable, "-c", SIX], cwd=root, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    figures = json.loads(run.stdout.splitlines()[-1])
    assert figures["calendar_trained"] >= 1 and figures["calendar_nights"] == 6
