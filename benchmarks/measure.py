"""A whole process and all below it, measured: wall-clock and CPU seconds, and the most memory held at once."""

import os
import signal
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
    killed: str = ""
    """The worker that was killed on purpose, as its command line."""


class _Seen(NamedTuple):
    cpu_s: float
    command: str


def measure(module: Sequence[str], kill: str = "", after_s: float = 0.0) -> Took:
    """Run `python -m MODULE ARGUMENTS`. Raises RuntimeError with the end of its messages when it fails.

    `kill`: SIGKILL the busiest descendant whose command line has this text in it, once, when it has worked `after_s`.
    """
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as said,
        tempfile.TemporaryFile("w+", encoding="utf-8") as errors,
    ):
        started, peak, killed, weigh_at = time.monotonic(), 0.0, "", 0.0
        seen: dict[int, _Seen] = {}
        process = subprocess.Popen([sys.executable, "-W", "ignore", "-m", *module], stdout=said, stderr=errors)
        try:
            while True:
                pid, status, usage = os.wait4(process.pid, os.WNOHANG)
                if pid:
                    break
                now = _tree(process.pid)
                seen |= now
                if (looked := time.monotonic()) >= weigh_at:
                    peak = max(peak, sum(map(_memory_mb, now)))
                    weigh_at = time.monotonic() + (time.monotonic() - looked) / MEMORY_SHARE
                if kill and not killed:
                    killed = _kill_one({pid: one for pid, one in now.items() if pid != process.pid}, kill, after_s)
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
        cpu_s = max(usage.ru_utime + usage.ru_stime, sum(one.cpu_s for one in seen.values()))
        return Took(wall_s, cpu_s, max(peak, usage.ru_maxrss / 1024), said.read().strip().splitlines()[-1], killed)


def _kill_one(candidates: dict[int, _Seen], name: str, after_s: float) -> str:
    busy = [(one.cpu_s, pid) for pid, one in candidates.items() if name in one.command and one.cpu_s >= after_s]
    if not busy:
        return ""
    os.kill(max(busy)[1], signal.SIGKILL)
    return candidates[max(busy)[1]].command


def _tree(pid: int) -> dict[int, _Seen]:
    """The process and all below it, without those that end between two looks."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        command = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").replace("\0", " ").strip()
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(child) for task in tasks for child in (task / "children").read_text(encoding="utf-8").split()]
    except (OSError, IndexError):
        return {}
    found = {pid: _Seen((int(fields[11]) + int(fields[12])) * TICK_S, command)}
    for child in children:
        found |= _tree(child)
    return found


def _memory_mb(pid: int) -> float:
    """Resident memory, each shared page divided by the number of processes that share it."""
    try:
        return int(Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").split("Pss:")[1].split()[0]) / 1024
    except (OSError, IndexError):  # it ended between two looks
        return 0.0
