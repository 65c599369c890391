"""Each start of a trainer claims its directory under the next free number, and each save checks that the claim is still
the newest: a lock is lost by a process that the network cut off."""

import errno
import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from pipeline.core.storage import Record, Store
from pipeline.training.result import InvalidPlan

FOLDER = "claims"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NOTHING = 16 << 20
"""Bytes. A disk with less has no room."""
GIVES_WAY_S = 300.0
"""For the locks of a node that died: Lustre takes them back once it has evicted that client, after minutes."""


class Superseded(RuntimeError):
    """A later start has claimed the directory: this trainer writes nothing more."""


class RecordedClaim(Record):
    id: str
    attempt: int


class Claim(NamedTuple):
    """Of one start of a trainer on its directory."""

    root: Path
    id: str

    def check(self) -> None:
        """Raise Superseded unless the claim is the newest one."""
        newest = newest_claim(self.root)
        if newest is None or newest.id != self.id:
            by = f"a later start has claimed it (attempt {newest.attempt})" if newest else "its claims were removed"
            raise Superseded(f"{self.root} is not this trainer's any more, {by}: it writes nothing more.")


def claim(root: Path, attempt: int = 0) -> Claim:
    """Claim the directory for this start of a trainer. `attempt`: by its launcher's count; 0 where none counts.
    Raises InvalidPlan where a later attempt has claimed it."""
    store, own = Store(root), RecordedClaim(id=uuid.uuid4().hex, attempt=attempt)
    while True:
        newest = newest_claim(root)
        if newest is not None and 0 < attempt < newest.attempt:
            raise InvalidPlan(f"Attempt {newest.attempt} has claimed {root}, and this is {attempt}: it was replaced.")
        numbers = _numbers(root)
        number = max(numbers, default=0) + 1
        if store.create(_name(number), own):
            for older in numbers:
                store.path(_name(older)).unlink(missing_ok=True)
            return Claim(root, own.id)


def newest_claim(root: Path) -> RecordedClaim | None:
    """The claim that has the directory; None where no trainer ever started there."""
    store = Store(root)
    while numbers := _numbers(root):
        newest = store.read(_name(max(numbers)), RecordedClaim)
        if newest is not None:  # else a later one has just removed it
            return newest
    return None


def _numbers(root: Path) -> list[int]:
    return [int(path.stem) for path in (root / FOLDER).glob("*.json") if path.stem.isdecimal()]


def _name(number: int) -> str:
    return f"{FOLDER}/{number:06}.json"


class WriterLocked(ValueError):
    """Another live process holds the directory. Nothing is wrong with this one."""


@contextmanager
def only_writer(root: Path, attempt: int = 0) -> Generator[Claim]:
    """Hold the directory's writer lock and a claim; the kernel frees the lock when this process ends, however it ends.
    `attempt`: by its launcher's count. Then the claim comes first, so that the holder of the lock gives way, and
    WriterLocked is raised after `GIVES_WAY_S`; without one, at once. Raises InvalidPlan where a later attempt has
    claimed the directory."""
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
        free, words = shutil.disk_usage(root).free, str(error)
        # safetensors quotes the system; torch's writer only says that it stands elsewhere than it should.
        full = "No space left on device" in words or ("inline_container" in words and free < NOTHING)
        if isinstance(error, OSError):
            full = error.errno in FULL
        if not full:
            raise
        raise ValueError(
            f"There is no room for another checkpoint in {root}: {free >> 20} MiB are free ({error}). The older ones "
            "stand. Free space, or lower training.checkpoints.keep_last or keep_best, and run again: it resumes."
        ) from error
