"""The turn: whose attempt may write here, where a lock alone cannot tell.

The lock of `writer.py` dies with its process, but on a node that the network cut off the process lives on and its lock
is taken from it. So each attempt that a launcher numbers takes the directory with its number, and whoever finds a
higher one there has been replaced: it publishes nothing more.
"""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from pipeline.storage import Record, write_atomically
from pipeline.training.exits import InvalidPlan

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
