"""A whole process and all below it, measured: wall-clock and CPU seconds, and the most memory held at once."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

EVERY_S = 0.1
MEMORY_SHARE = 0.02
"""Of the time, at most, goes into adding up memory: the kernel walks every page for that."""
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Took(NamedTuple):
    """`peak_mb`: shared pages are counted once. `said`: the last line that the process printed."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    said: str


def measure(module: Sequence[str]) -> Took:
    """Run `python -m MODULE ARGUMENTS`. Raises RuntimeError with the end of its messages when it fails."""
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as said,
        tempfile.TemporaryFile("w+", encoding="utf-8") as errors,
    ):
        started, peak, weigh_at = time.monotonic(), 0.0, 0.0
        by_process: dict[int, float] = {}
        process = subprocess.Popen([sys.executable, "-W", "ignore", "-m", *module], stdout=said, stderr=errors)
        try:
            while True:
                pid, status, usage = os.wait4(process.pid, os.WNOHANG)
                if pid:
                    break
                now = _tree(process.pid)
                by_process |= now
                if (looked := time.monotonic()) >= weigh_at:
                    peak = max(peak, sum(map(_memory_mb, now)))
                    weigh_at = time.monotonic() + (time.monotonic() - looked) / MEMORY_SHARE
                time.sleep(EVERY_S)
        except BaseException:  # also an interrupt: what is measured does not outlive its measurement
            process.kill()
            raise
        wall_s = time.monotonic() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        errors.seek(0)
        if process.returncode:
            raise RuntimeError(f"{' '.join(module)} ended with {process.returncode}:\n{errors.read()[-4000:]}")
        # The kernel's figures are exact, and miss children that nobody waited for; the sampled ones see those too.
        took_s = max(usage.ru_utime + usage.ru_stime, sum(by_process.values()))
        return Took(wall_s, took_s, max(peak, usage.ru_maxrss / 1024), (said.read().strip().splitlines() or [""])[-1])


def cpu_s(pid: int) -> float:
    """CPU seconds of the process and of all below it that live."""
    return sum(_tree(pid).values())


def _tree(pid: int) -> dict[int, float]:
    """CPU seconds of the process and of all below it, without those that end between two looks."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(child) for task in tasks for child in (task / "children").read_text(encoding="utf-8").split()]
    except (OSError, IndexError):
        return {}
    found = {pid: (int(fields[11]) + int(fields[12])) * TICK_S}
    for child in children:
        found |= _tree(child)
    return found


def _memory_mb(pid: int) -> float:
    """Resident memory, each shared page divided by the number of processes that share it."""
    try:
        return int(Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").split("Pss:")[1].split()[0]) / 1024
    except (OSError, IndexError):  # it ended between two looks
        return 0.0
