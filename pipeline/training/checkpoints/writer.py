"""One writer for a directory of checkpoints, and room on its disk.

The fencing token: whose attempt may write here, where a lock alone cannot tell. The lock dies with its process, but on
a node that the network cut off the process lives on and its lock is taken from it. So each attempt that a launcher
numbers takes the directory with its number, and whoever meets a higher one there has been replaced: it
publishes nothing more.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from pydantic import ValidationError

from pipeline.storage import Record, write_atomically
from pipeline.training.result import InvalidPlan

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NOTHING = 16 << 20
"""Bytes. A disk with less has no room."""
GIVES_WAY_S = 300.0
"""For the locks of a node that died: Lustre takes them back once it has evicted that client, after minutes."""


class WriterLocked(ValueError):
    """Another live process holds the directory. Nothing is wrong with this one."""


@contextmanager
def only_writer(root: Path, turn: FencingToken | None = None) -> Generator[None]:
    """Hold the directory's writer lock; the kernel frees it when this process ends, however it ends.

    Raises WriterLocked when another live process holds it; with a `turn`, which the holder has to give way to,
    only after `GIVES_WAY_S`. Raises InvalidPlan when a later turn has the directory.
    """
    root.mkdir(parents=True, exist_ok=True)
    if turn is not None:
        take(root, turn)
    with (root / "writer.lock").open("a+") as lock:
        _lock(lock, root, GIVES_WAY_S if turn else 0.0)
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


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


FILE = "turn.json"


class FencingToken(NamedTuple):
    """The launcher's attempt, and how often the gang was started again inside it."""

    attempt: int
    restart: int = 0


class RecordedToken(Record):
    attempt: int
    restart: int


def parse(text: str) -> FencingToken | None:
    """The turn written as `2.1`; None for an empty text: nobody numbers the attempts. Raises ValueError."""
    if not text:
        return None
    attempt, _, restart = text.partition(".")
    if not attempt.isdecimal() or not (restart or "0").isdecimal():
        raise ValueError(f"--attempt {text!r} is no turn: write ATTEMPT.RESTART, such as 2.0.")
    return FencingToken(int(attempt), int(restart or 0))


def take(root: Path, turn: FencingToken) -> None:
    """Take the directory for this turn. Raises InvalidPlan when a later one has it."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / "turn.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        check(root, turn)
        write_atomically(root / FILE, RecordedToken(**turn._asdict()).model_dump_json())


def check(root: Path, turn: FencingToken) -> None:
    """Raise InvalidPlan when a later turn has taken the directory."""
    taken = _taken(root)
    if taken > turn:
        raise InvalidPlan(
            f"Attempt {taken.attempt}.{taken.restart} has taken {root}, and this is {turn.attempt}.{turn.restart}: it "
            "was replaced and writes nothing more. Leave the field to the later one."
        )


def _taken(root: Path) -> FencingToken:
    path = root / FILE
    if not path.is_file():
        return FencingToken(0)
    try:
        record = RecordedToken.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise InvalidPlan(
            f"{path} is not what a trainer writes ({error}). Remove it when nothing trains there."
        ) from error
    return FencingToken(record.attempt, record.restart)
