"""The metrics of a training as they come: a line of JSON for each logged step, with the time at which it was measured.

Owns that a step has one line, the first, over all attempts: who computes it again after a kill adds none, so that
whatever was sent on from here stays as it was sent. Numbers alone; a line that a kill cut short is left out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pipeline.training.journal import end_line


class LoggedRow(NamedTuple):
    """A step's metrics by name. `at`: seconds since the epoch."""

    at: float
    step: int
    metrics: dict[str, float]


class MetricsLog:
    """Appends to one file. Without a path (a rank that writes no checkpoints) it keeps nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._steps = {row.step for row in read_rows(path).rows} if path is not None else set[int]()
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            end_line(path)

    def add(self, row: Mapping[str, float]) -> None:
        """`row`: metrics by name, with their `step`. One of a step that has a line changes nothing."""
        step = int(row["step"])
        if self._path is None or step in self._steps:
            return
        self._steps.add(step)
        metrics = {name: float(value) for name, value in row.items() if name != "step"}
        with self._path.open("a") as stream:
            stream.write(json.dumps({"at": time.time(), "step": step, "metrics": metrics}) + "\n")


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
