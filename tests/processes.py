"""Processes as a test sees them: any may end between two looks, and one that has ended is no error."""

import time
from collections.abc import Callable
from contextlib import suppress

import psutil

WITHIN_S = 120


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Not gone, and no zombie that waits for its parent."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return False


def children(pid: int) -> set[int]:
    """The pids of its children."""
    return {child.pid for child in psutil.Process(pid).children()}


def below(pid: int, *words: str) -> list[psutil.Process]:
    """Its children, their children and so on whose command lines hold all the words."""
    return [child for child in psutil.Process(pid).children(recursive=True) if _has(child, words)]


def _has(process: psutil.Process, words: tuple[str, ...]) -> bool:
    with suppress(psutil.NoSuchProcess):  # of which a zombie is one
        line = " ".join(process.cmdline())
        return all(word in line for word in words)
    return False
