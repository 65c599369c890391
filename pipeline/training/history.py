"""A training's metrics so far, as the sentinel's rules look at them: at first, at last, lately."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

Row = Mapping[str, float]
WINDOW = 5  # steps that a rule averages over: one bad batch stops nothing
VALIDATIONS = 2  # held-out figures that are averaged: each is a mean over many answers already
HELD_OUT = "held_out/"


class MetricChange(NamedTuple):
    """A metric's mean at first and at last."""

    name: str
    first: float
    last: float

    @property
    def rise(self) -> float:
        return self.last - self.first

    @property
    def fall(self) -> float:
        """As a share of what it was; 0 for what was nothing."""
        return -self.rise / self.first if self.first > 0 else 0.0

    def __str__(self) -> str:
        return f"{self.name} went from {self.first:.3g} to {self.last:.3g}"


class MetricHistory:
    """Give it each row once. A row costs the same in a long history."""

    def __init__(self) -> None:
        self.row: Row = {}
        self._values: defaultdict[str, list[float]] = defaultdict(list)
        self._rows = 0

    def take(self, row: Row) -> int:
        """Take a row; returns its step."""
        self.row, self._rows = row, self._rows + 1
        for name, value in row.items():
            if math.isfinite(value):
                self._values[name].append(value)
        return int(row.get("step", self._rows))

    def names(self) -> Iterable[str]:
        return self._values

    def values(self, name: str) -> list[float]:
        """A metric at every row that has it."""
        return self._values.get(name, [])

    def first(self, name: str) -> float | None:
        """Mean of the first window's values; of held-out metrics the first one, which is the base model's."""
        values = self.values(name)
        if name.startswith(HELD_OUT):
            return values[0] if values else None
        return _mean(values[:WINDOW]) if len(values) >= WINDOW else None

    def last(self, name: str) -> float | None:
        """Mean of the last window's values, none of them among the first ones; None while they are few."""
        values = self.values(name)
        if name.startswith(HELD_OUT):
            return _mean(values[max(1, len(values) - VALIDATIONS) :]) if len(values) > 1 else None
        enough = len(values) >= WINDOW + (WINDOW + 1) // 2
        return _mean(values[max(WINDOW, len(values) - WINDOW) :]) if enough else None

    def recent(self, name: str) -> list[float]:
        """A whole window of the last values, the first ones too; none while they are fewer."""
        values = self.values(name)
        return values[-WINDOW:] if len(values) >= WINDOW else []

    def latest(self, name: str) -> float | None:
        """The last value; of held-out metrics it may be the base model's."""
        return next(reversed(self.values(name)), None)

    def level(self, name: str) -> float | None:
        """Mean of the last values, for a metric with a limit of its own."""
        if name.startswith(HELD_OUT):
            return self.last(name)
        values = self.recent(name)
        return _mean(values) if values else None

    def changes(self, *names: str) -> list[MetricChange]:
        """Of these metrics, those whose first and last values are known."""
        known = ((name, self.first(name), self.last(name)) for name in names)
        return [MetricChange(name, first, last) for name, first, last in known if None not in (first, last)]  # type: ignore[arg-type]


def _mean(values: Sequence[float]) -> float:
    """Unlike `fmean` it raises nothing on numbers near the largest."""
    return sum(values) / len(values)
