"""Two ranks over gloo: one of them killed, all of them pre-empted, and still the bits of the undisturbed run."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from benchmarks.kills import adapter_of, result_of
from tests.pipeline.training.plans import folder, two_ranks

pytestmark = pytest.mark.slow


def plan(root: Path) -> Path:
    return folder(*two_ranks(root)) / "plan.json"


def lines(path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "pipeline.training", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            yield process, line
    yield process, "done"


def rank_of(gang: int, rank: int) -> psutil.Process:
    """The process of a rank below the gang's."""
    return next(each for each in psutil.Process(gang).children() if each.environ().get("RANK") == str(rank))


@pytest.mark.variant
def test_a_killed_rank_and_a_pre_emption_change_no_bit(tmp_path: Path) -> None:
    undisturbed, broken = plan(tmp_path / "undisturbed"), plan(tmp_path / "broken")
    *_, (process, _) = lines(undisturbed)
    assert process.returncode == 0
    whole = result_of(undisturbed)
    assert [row["step"] for row in whole.metrics] == [0, 1, 2, 3, 4, 5, 6, 7, 8]

    killed = False
    for process, line in lines(broken):
        if "step 3/8" in line and not killed:
            killed = True
            rank_of(process.pid, 1).kill()  # the gang starts both again, by itself
        elif "step 5/8" in line:
            process.send_signal(signal.SIGTERM)
    assert process.returncode == 143
    *_, (process, _) = lines(broken)
    assert process.returncode == 0

    again = result_of(broken)
    assert adapter_of(broken) == adapter_of(undisturbed)
    assert again.attempts == 3
    assert again.resumed_from == (2, 6), "a batch of generation serves two steps: it ends at an even one"
    held_out = [[row.get("held_out/accuracy") for row in found.metrics] for found in (whole, again)]
    assert held_out[0] == held_out[1]
