"""One writer for a directory of checkpoints (its lock, and its claim: `claims.py`), and room on its disk."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pipeline.training.checkpoints.claims import Claim, claim

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NOTHING = 16 << 20
"""Bytes. A disk with less has no room."""
GIVES_WAY_S = 300.0
"""For the locks of a node that died: Lustre takes them back once it has evicted that client, after minutes."""


class WriterLocked(ValueError):
    """Another live process holds the directory. Nothing is wrong with this one."""


@contextmanager
def only_writer(root: Path, attempt: int = 0) -> Generator[Claim]:
    """Hold the directory's writer lock and a claim; the kernel frees the lock when this process ends, however it ends.

    `attempt`: by its launcher's count. Then the claim comes first, so that the holder of the lock gives way, and
    WriterLocked is raised after `GIVES_WAY_S`; without one, at once. Raises InvalidPlan where a later attempt has
    claimed the directory.
    """
    root.mkdir(parents=True, exist_ok=True)
    first = claim(root, attempt) if attempt else None
    with (root / "writer.lock").open("a+") as lock:
        _lock(lock, root, GIVES_WAY_S if attempt else 0.0)
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield first or claim(root)


def _lock(lock: IO[str], root: Path, patience_s: float) -> None:
    waited_since = time.monotonic()
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() - waited_since > patience_s:
                raise WriterLocked(
                    f"Another process is training in {root}. Wait for it, or end it, and run again."
                ) from None
            time.sleep(1)


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
