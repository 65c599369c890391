"""Spares a canary that answers nobody its tries: open for a second after failures in a row, then one request tries."""

from __future__ import annotations

import time
from collections.abc import Callable

OPEN_S = 1.0
FAILURES = 3
"""In a row: one in a hundred that fails must not take its neighbours' answers, which would count as its errors."""


class Breaker:
    """Of one slot, in one process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures = 0
        self._open_until = 0.0
        self._trying = False

    @property
    def is_open(self) -> bool:
        return self._failures >= FAILURES

    def lets(self) -> bool:
        """Whether this request may try. Whoever may has to say how it went."""
        if not self.is_open:
            return True
        if self._trying or self._clock() < self._open_until:
            return False
        self._trying = True
        return True

    def answered(self) -> None:
        self._failures, self._trying = 0, False

    def failed(self) -> None:
        self._failures, self._trying = self._failures + 1, False
        self._open_until = self._clock() + OPEN_S

    def ended(self) -> None:
        """The request is over, however: where the caller hung up, its slot neither answered nor failed."""
        self._trying = False
