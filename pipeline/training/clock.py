"""The split of a step's time: named spans that never overlap, because an inner one pauses the outer one."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager


class Clock:
    """Adds up seconds by name. `settle` is called at both ends of a span: on a GPU it waits for the work in flight."""

    def __init__(self, settle: Callable[[], None] = lambda: None) -> None:
        self.settle = settle
        self._spent: dict[str, float] = {}
        self._open: list[str] = []
        self._since = 0.0

    @contextmanager
    def span(self, name: str) -> Generator[None]:
        self._turn()
        self._open.append(name)
        try:
            yield
        finally:
            self._turn()
            self._open.pop()

    def take(self) -> dict[str, float]:
        """Seconds by name since the last call."""
        spent, self._spent = self._spent, {}
        return spent

    def _turn(self) -> None:
        """Book the time since the last turn to the innermost open span."""
        self.settle()
        now = time.monotonic()
        if self._open:
            name = self._open[-1]
            self._spent[name] = self._spent.get(name, 0.0) + now - self._since
        self._since = now
