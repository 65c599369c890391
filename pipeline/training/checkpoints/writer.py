"""One writer for a directory of checkpoints, and room on its disk."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NOTHING = 16 << 20
"""Bytes. A disk with less has no room."""


@contextmanager
def only_writer(root: Path) -> Generator[None]:
    """Hold the directory's writer lock; the kernel frees it when this process ends, however it ends.

    Raises ValueError when another live process holds it.
    """
    root.mkdir(parents=True, exist_ok=True)
    with (root / "writer.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"Another process is training in {root}. Wait for it, or end it, and run again.") from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


@contextmanager
def room(root: Path) -> Generator[None]:
    """Turns a full disk, met while saving below `root`, into a ValueError that says what to do."""
    try:
        yield
    except Exception as error:  # the boundary of torch and safetensors, whose own errors carry no errno
        free = shutil.disk_usage(root).free
        if not _full(error, free):
            raise
        raise ValueError(
            f"There is no room for another checkpoint in {root}: {free >> 20} MiB are free ({error}). The older ones "
            "stand. Free space, or lower training.checkpoints.keep_last or keep_best, and run again: it resumes."
        ) from error


def _full(error: Exception, free: int) -> bool:
    if isinstance(error, OSError):
        return error.errno in FULL
    # safetensors quotes the system; torch's writer only says that it stands elsewhere than it should.
    return "No space left on device" in str(error) or ("inline_container" in str(error) and free < NOTHING)
