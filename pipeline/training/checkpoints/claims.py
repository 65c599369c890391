"""Whose directory of checkpoints it is: each start of a trainer claims it, and each save checks that claim.

A lock alone cannot tell: it dies with its process, but on a node that the network cut off the process lives on and its
lock is taken from it. An attempt's number cannot tell either: a queue that suspends a gang and resumes it starts a
second generation of pods under the same one. So each start writes a claim under the next free number, and the highest
number has the directory. No clock decides.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import NamedTuple

from pipeline.core.storage import Record, Store
from pipeline.training.result import InvalidPlan

FOLDER = "claims"


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
    """Claim the directory for this start of a trainer. `attempt`: by its launcher's count; 0 where nobody counts.

    Raises InvalidPlan where a later attempt has claimed it.
    """
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
