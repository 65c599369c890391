"""The training's journal of events and its log of metrics: a line of JSON each, appended by the first rank. A line that
a kill cut short is left out. Times are seconds since the epoch. And the lines that a training prints for people."""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from pydantic import Field

from pipeline.core.storage import Record, append

T = TypeVar("T")
PREFIX = "training: "
Kind = Literal["started", "ready", "step", "saved", "validated", "stopping", "ended"]


class TrainingEvent(Record):
    """One line. `step`: where the training stood; for `started` the step that it resumes at. `seconds`: by name, what a
    step spent (`generate`, `reward`, `logprobs`, `update`, ...; with `step` for the whole), or what a save (`save`) or
    a validation (`validation`) took. `why`: the signal of `stopping`."""

    kind: Kind
    at: float
    step: int
    seconds: dict[str, float] = Field(default={})
    why: str = ""


class LoggedRow(NamedTuple):
    """A step's metrics by name. `at`: when they were measured."""

    at: float
    step: int
    metrics: dict[str, float]


class _Lines:
    """Appends to one file. Without a path (a rank that writes no checkpoints) it keeps nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def _append(self, line: str) -> None:
        if self._path is not None:
            append(self._path, f"{line}\n".encode())


class TrainingJournal(_Lines):
    def add(
        self, kind: Kind, step: int, seconds: dict[str, float] | None = None, why: str = "", at: float | None = None
    ) -> None:
        """`at`: when it was, if not now."""
        now = time.time() if at is None else at
        self._append(TrainingEvent(kind=kind, at=now, step=step, seconds=seconds or {}, why=why).model_dump_json())


class MetricsLog(_Lines):
    """A step has one line, the first, over all attempts: what was sent on from here stays."""

    def __init__(self, path: Path | None) -> None:
        super().__init__(path)
        self._steps = {row.step for row in read_rows(path)[0]} if path is not None else set[int]()

    def add(self, row: Mapping[str, float]) -> None:
        """`row`: metrics by name, with their `step`. One of a step that has a line changes nothing."""
        step = int(row["step"])
        if step not in self._steps:
            self._steps.add(step)
            metrics = {name: float(value) for name, value in row.items() if name != "step"}
            self._append(json.dumps({"at": time.time(), "step": step, "metrics": metrics}))


def read_journal(path: Path) -> Sequence[TrainingEvent]:
    """Every whole line, in order; an empty journal for a file that is not there."""
    return _read(path, TrainingEvent.model_validate_json, 0)[0]


def read_rows(path: Path, start: int = 0) -> tuple[list[LoggedRow], int]:
    """The whole lines from byte `start` on, and the byte where they end; none of a file that is not there."""
    return _read(path, lambda line: LoggedRow(**json.loads(line)), start)


def _read(path: Path, decode: Callable[[bytes], T], start: int) -> tuple[list[T], int]:
    text, found = b"", list[T]()
    if path.is_file():
        with path.open("rb") as stream:
            stream.seek(start)
            text = stream.read()
    whole = text[: text.rfind(b"\n") + 1]
    for line in whole.splitlines():
        with suppress(ValueError, TypeError):  # a kill cut it
            found.append(decode(line))
    return found, start + len(whole)


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


def emit(message: str) -> None:
    """One line of progress, of the first rank."""
    if os.environ.get("RANK", "0") == "0":
        print(f"{PREFIX}{message}", flush=True)
