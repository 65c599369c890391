"""SIGTERM as a saved stop (143) where there is time for one, at the end of a batch of generation; else the process ends
at once, and the last checkpoint stands."""

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from pipeline.training.result import PREEMPTED

BACKSTOP = 0.9
"""Share of the grace after which the process ends, saved or not."""


class Termination:
    """Hears SIGTERM from its making on. `notify` is called when it comes, from the handler."""

    def __init__(self, grace_s: float, notify: Callable[[], None]) -> None:
        self._grace_s, self._notify = grace_s, notify
        self.asked = False
        """SIGTERM has come, and there seemed to be time for a checkpoint."""
        self.loaded = False
        """The training has begun: before, there is nothing to save."""
        self._batch_began: float | None = None
        self._batch_s, self._longest = 0.0, dict[str, float]()
        signal.signal(signal.SIGTERM, self._terminate)

    def batch_begins(self, at: float) -> None:
        """`at`: of the monotonic clock."""
        self._batch_began = at

    def batch_ends(self, at: float) -> None:
        if self._batch_began is not None:
            self._batch_s = max(self._batch_s, at - self._batch_began)
        self._batch_began = None

    def took(self, what: str, seconds: float) -> None:
        """`what`: a validation or a save, whose longest may come once more before the end."""
        self._longest[what] = max(self._longest.get(what, 0.0), seconds)

    def _terminate(self, *_: Any) -> None:
        self.asked = True
        self._notify()
        spent = time.monotonic() - self._batch_began if self._batch_began is not None else 0.0
        needed = max(0.0, self._batch_s - spent) + sum(self._longest.values())
        if not self.loaded or needed > self._grace_s:
            _end()
        backstop = threading.Timer(BACKSTOP * self._grace_s, _end)
        backstop.daemon = True
        backstop.start()


def _end() -> None:
    os._exit(PREEMPTED)
