"""Whether a gang that is started again and again gets anywhere: by the checkpoints that it leaves.

A pre-emption is not counted, however often it happens. But a pod that fills its node's disk is evicted like a
pre-empted one, and a trainer may leave with 143 by mistake: those would start for ever.
"""

from __future__ import annotations

from pathlib import Path

FRUITLESS = 10
"""Starts in a row that left no newer checkpoint, after which somebody has to look."""


PATTERNS = ("checkpoints/step-*", "nemo/*/checkpoints/step_*")
"""In a training's folder: ours, and NeMo RL's."""


class GangProgress:
    """Counts the starts since a checkpoint was new in a training's `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known, self._fruitless = self._there(), 0
        self._starts: int | None = None

    def started(self, starts: int) -> bool:
        """`starts` of the gang so far. False once too many of them in a row came to nothing."""
        if self._starts is not None and starts > self._starts:
            there = self._there()
            self._fruitless = 0 if there - self._known else self._fruitless + starts - self._starts
            self._known |= there
        self._starts = starts
        return self._fruitless < FRUITLESS

    def _there(self) -> set[str]:
        return {str(path) for pattern in PATTERNS for path in self._folder.glob(pattern)}
