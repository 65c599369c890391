"""One writer for a directory of checkpoints, and room on its disk.

The fencing token: whose attempt may write here, where a lock alone cannot tell. The lock dies with its process, but on
a node that the network cut off the process lives on and its lock is taken from it. So each attempt that a launcher
numbers takes the directory with its number, and whoever meets a higher one there has been replaced: it
publishes nothing more. Inside an attempt the restart counts, and where a queue starts a gang again under the same
restart, the pod's start (`starts.py`).
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
from pipeline.training.checkpoints.starts import PodStart, pod_start
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
    """The launcher's attempt, how often the gang was started again inside it, and the start of the pod that writes."""

    attempt: int
    restart: int = 0
    started_at: int = 0
    """Seconds since the epoch, by the API server; 0 where no file tells."""
    pod: str = ""
    """Its uid."""

    def __str__(self) -> str:
        """As `parse` reads it."""
        return ".".join(map(str, self if self.pod else self[:2]))

    def later_than(self, other: FencingToken) -> bool:
        """By attempt and restart, and by the start where both tell one."""
        compared = 3 if self.pod and other.pod else 2
        return self[:compared] > other[:compared]

    def of_any_pod(self) -> FencingToken:
        """Of the whole gang: what its pods have in common that write nothing."""
        return FencingToken(self.attempt, self.restart)


class RecordedToken(Record):
    attempt: int
    restart: int
    started_at: int = 0
    pod: str = ""


def parse(text: str, start: str = "") -> FencingToken | None:
    """The turn written as `2.1`, or as `2.1.STARTED_AT.POD`; None for an empty text: nobody numbers the attempts.

    `start`: file that tells of the pod's start (`starts.py`), where the text does not. Raises ValueError for another
    text, RuntimeError for a file that tells nothing.
    """
    if not text:
        return None
    attempt, restart, started_at, pod = [*text.split(".", 3), "", "", ""][:4]
    numbers = (attempt, restart or "0", started_at or "0")
    if not all(number.isdecimal() for number in numbers) or bool(started_at) != bool(pod):
        raise ValueError(f"--attempt {text!r} is no turn: write ATTEMPT.RESTART, such as 2.0.")
    first = pod_start(Path(start)) if start else PodStart(int(numbers[2]), pod)
    return FencingToken(int(attempt), int(numbers[1]), first.issued_at, first.uid)


def take(root: Path, turn: FencingToken) -> None:
    """Take the directory for this turn. Raises InvalidPlan when a later one has it."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / "turn.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        taken = holder(root)
        if taken.later_than(turn):
            raise _replaced(root, taken, turn)
        write_atomically(root / FILE, RecordedToken(**turn._asdict()).model_dump_json())


def check(root: Path, turn: FencingToken) -> None:
    """Raise InvalidPlan when a later turn, or another pod's of the same second, has taken the directory."""
    taken = holder(root)
    other_pod = bool(turn.pod) and taken.pod != turn.pod
    if taken.later_than(turn) or (other_pod and not turn.later_than(taken)):
        raise _replaced(root, taken, turn)


def _replaced(root: Path, taken: FencingToken, turn: FencingToken) -> InvalidPlan:
    return InvalidPlan(
        f"Attempt {taken.attempt}.{taken.restart} has taken {root}{_by(taken)}, and this is "
        f"{turn.attempt}.{turn.restart}{_by(turn)}: it was replaced and writes nothing more. Leave the field to the "
        "later one."
    )


def _by(turn: FencingToken) -> str:
    return f" (pod {turn.pod}, started at {turn.started_at})" if turn.pod else ""


def holder(root: Path) -> FencingToken:
    """Whose turn the directory remembers; attempt 0 where none has taken it. Raises InvalidPlan for a file that no
    trainer wrote."""
    path = root / FILE
    if not path.is_file():
        return FencingToken(0)
    try:
        record = RecordedToken.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise InvalidPlan(
            f"{path} is not what a trainer writes ({error}). Remove it when nothing trains there."
        ) from error
    return FencingToken(**dict(record))
