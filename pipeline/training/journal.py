"""The training's journal: a line of JSON for each thing that happened, appended by the process that writes checkpoints.

Owns what happened and when, over all attempts; `goodput.py` draws the account from it. A line that a kill cut short is
left out. Times are wall-clock seconds since the epoch, because they are compared across processes and machines.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from pipeline.core.storage import Record

Kind = Literal["started", "ready", "step", "saved", "validated", "stopping", "ended"]


class TrainingEvent(Record):
    """One line. `step`: where the training stood; for `started` the step that it resumes at.

    `seconds`: by name, what a step spent (`generate`, `reward`, `logprobs`, `update`, ...; with `step` for the whole),
    or what a save (`save`) or a validation (`validation`) took. `why`: the signal of `stopping`; for `ended` "done",
    "solved", "braked" or "stopped".
    """

    kind: Kind
    at: float
    step: int
    seconds: dict[str, float] = Field(default={})
    why: str = ""


class TrainingJournal:
    """Appends to one file. Without a path (a rank that writes no checkpoints) it keeps nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            end_line(path)

    def add(
        self, kind: Kind, step: int, seconds: dict[str, float] | None = None, why: str = "", at: float | None = None
    ) -> None:
        """`at`: when it was, if not now."""
        if self._path is None:
            return
        event = TrainingEvent(
            kind=kind, at=time.time() if at is None else at, step=step, seconds=seconds or {}, why=why
        )
        with self._path.open("a") as stream:
            stream.write(event.model_dump_json() + "\n")


def read_journal(path: Path) -> Sequence[TrainingEvent]:
    """Every whole line, in order; an empty journal for a file that is not there."""
    if not path.is_file():
        return ()
    events: list[TrainingEvent] = []
    for line in path.read_text(errors="replace").splitlines():
        try:
            events.append(TrainingEvent.model_validate(json.loads(line)))
        except (ValueError, ValidationError):  # cut by a kill
            continue
    return events


def end_line(path: Path) -> None:
    """What comes next must not be glued to a line that a kill cut short."""
    if path.is_file() and not path.read_bytes().endswith(b"\n") and path.stat().st_size:
        with path.open("a") as stream:
            stream.write("\n")
