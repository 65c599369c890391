"""The training's journal of events, and its log of metrics: a line of JSON each, appended by the first rank.

A line that a kill cut short is left out. Times are seconds since the epoch: they are compared across machines.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field

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


class _Lines:
    """Appends to one file. Without a path (a rank that writes no checkpoints) it keeps nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_file() and path.stat().st_size and not path.read_bytes().endswith(b"\n"):
                self._append("")  # what comes next must not be glued to a line that a kill cut short

    def _append(self, line: str) -> None:
        if self._path is not None:
            with self._path.open("a") as stream:
                stream.write(f"{line}\n")


class TrainingJournal(_Lines):
    """Of what happened."""

    def add(
        self, kind: Kind, step: int, seconds: dict[str, float] | None = None, why: str = "", at: float | None = None
    ) -> None:
        """`at`: when it was, if not now."""
        now = time.time() if at is None else at
        self._append(TrainingEvent(kind=kind, at=now, step=step, seconds=seconds or {}, why=why).model_dump_json())


def read_journal(path: Path) -> Sequence[TrainingEvent]:
    """Every whole line, in order; an empty journal for a file that is not there."""
    if not path.is_file():
        return ()
    events: list[TrainingEvent] = []
    for line in path.read_text(errors="replace").splitlines():
        try:
            events.append(TrainingEvent.model_validate_json(line))
        except ValueError:  # cut by a kill
            continue
    return events


class LoggedRow(NamedTuple):
    """A step's metrics by name. `at`: when they were measured."""

    at: float
    step: int
    metrics: dict[str, float]


class MetricsLog(_Lines):
    """Of metrics as they come. A step has one line, the first, over all attempts: what was sent on from here stays."""

    def __init__(self, path: Path | None) -> None:
        super().__init__(path)
        self._steps = {row.step for row in read_rows(path).rows} if path is not None else set[int]()

    def add(self, row: Mapping[str, float]) -> None:
        """`row`: metrics by name, with their `step`. One of a step that has a line changes nothing."""
        step = int(row["step"])
        if step not in self._steps:
            self._steps.add(step)
            metrics = {name: float(value) for name, value in row.items() if name != "step"}
            self._append(json.dumps({"at": time.time(), "step": step, "metrics": metrics}))


class RowsRead(NamedTuple):
    rows: list[LoggedRow]
    end: int
    """Bytes of the file that were read: where to go on."""


def read_rows(path: Path, start: int = 0) -> RowsRead:
    """The whole lines from byte `start` on, in order; none of a file that is not there."""
    if not path.is_file():
        return RowsRead([], start)
    with path.open("rb") as stream:
        stream.seek(start)
        text = stream.read()
    whole = text[: text.rfind(b"\n") + 1]
    rows: list[LoggedRow] = []
    for line in whole.splitlines():
        try:
            tree = json.loads(line)
            rows.append(LoggedRow(float(tree["at"]), int(tree["step"]), dict(tree["metrics"])))
        except (ValueError, KeyError, TypeError):  # cut by a kill
            continue
    return RowsRead(rows, start + len(whole))


SHOWN = {
    "reward": "reward",
    "accuracy": "accuracy",
    "rewards/accuracies": "pairs ranked right",
    "loss": "loss",
    "held_out/accuracy": "held out",
    "held_out/second_score": "second score",
    "tokens_per_s": "tokens/s",
}


def step_line(step: int, steps: int, row: Mapping[str, float]) -> str:
    """A step's progress: those of its metrics that people read."""
    return f"step {step}/{steps}  " + "  ".join(
        f"{name} {float(row[key]):.3f}" for key, name in SHOWN.items() if key in row
    )
