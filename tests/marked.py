"""Every process that came from one command, whatever it is called and whoever its parent is now (Linux)."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

MARK = "STARTED_BY_THE_TEST"
"""An environment variable to start a command with: its children inherit it."""


def marked(mark: str) -> dict[int, str]:
    """Pid and command line of each process with that mark in its environment; zombies have none."""
    processes: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"{MARK}={mark}".encode() in folder.joinpath("environ").read_bytes().split(b"\0"):
                words = folder.joinpath("cmdline").read_bytes().decode(errors="replace")
                processes[int(folder.name)] = words.replace("\0", " ")
    return processes


def kill(mark: str) -> None:
    """Send SIGKILL to each process with the mark."""
    for pid in marked(mark):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def left_after(mark: str, seconds: float) -> dict[int, str]:
    """What is left of the marked processes as soon as nothing is, or after that time."""
    deadline = time.monotonic() + seconds
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left


def listening_ports(mark: str) -> set[int]:
    """TCP ports on which the processes with the mark listen."""
    sockets: set[str] = set()
    for pid in marked(mark):
        with suppress(OSError):
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    sockets.add(str(descriptor.readlink()))
    lines = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text(encoding="utf-8").splitlines()[1:]
    ]
    return {int(f[1].rpartition(":")[2], 16) for f in lines if f[3] == "0A" and f"socket:[{f[9]}]" in sockets}
