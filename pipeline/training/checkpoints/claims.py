"""Each start of a trainer claims its directory under the next free number, and each save checks that the claim is still
the newest: a lock is lost by a process that the network cut off."""

import fcntl
import time
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from pipeline.core.storage import Record, Store
from pipeline.training.result import InvalidPlan

FOLDER = "claims"
GIVES_WAY_S = 300.0
"""For the locks of a node that died: Lustre takes them back once it has evicted that client, after minutes."""


class Superseded(RuntimeError):
    """A later start has claimed the directory: this trainer writes nothing more."""


class WriterLocked(ValueError):
    """Another live process holds the directory. Nothing is wrong with this one."""


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
        if store.create(_name(max(numbers, default=0) + 1), own):
            for older in numbers:
                store.path(_name(older)).unlink(missing_ok=True)
            return Claim(root, own.id)


def newest_claim(root: Path) -> RecordedClaim | None:
    """The claim that has the directory; None where no trainer ever started there."""
    while numbers := _numbers(root):
        newest = Store(root).read(_name(max(numbers)), RecordedClaim)
        if newest is not None:  # else a later one has just removed it
            return newest
    return None


def _numbers(root: Path) -> list[int]:
    return [int(path.stem) for path in (root / FOLDER).glob("*.json") if path.stem.isdecimal()]


def _name(number: int) -> str:
    return f"{FOLDER}/{number:06}.json"


@contextmanager
def only_writer(root: Path, attempt: int = 0) -> Generator[Claim]:
    """Hold the directory's writer lock and a claim; the kernel frees the lock when this process ends, however it ends.
    `attempt`: by its launcher's count. Then the claim comes first, so that the holder of the lock gives way, and
    WriterLocked is raised after `GIVES_WAY_S`; without one, at once. Raises InvalidPlan where a later attempt has
    claimed the directory."""
    root.mkdir(parents=True, exist_ok=True)
    first, until = claim(root, attempt) if attempt else None, time.monotonic() + (GIVES_WAY_S if attempt else 0.0)
    with (root / "writer.lock").open("ab") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    problem = f"Another process is training in {root}. Wait for it, or end it, and run again."
                    raise WriterLocked(problem) from None
                time.sleep(1)
        yield first or claim(root)
