"""Every process that came from one command, whatever it is called and whoever its parent is now (Linux)."""

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


def left_after(mark: str, seconds: float) -> dict[int, str]:
    """What is left of the marked processes as soon as nothing is, or after that time."""
    deadline = time.monotonic() + seconds
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left
