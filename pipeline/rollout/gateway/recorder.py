"""Writes what was served beside the event loop: every 50 ms, to one file for each day and process.

The file is opened and locked for each writing: an erasure that writes it anew is waited for, and loses nothing.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from datetime import UTC, datetime

from pipeline.core import layout
from pipeline.core.storage import Store
from pipeline.core.unfinished import append
from pipeline.rollout.gateway.counters import RECORDED, Counters
from pipeline.rollout.gateway.spans import Served, line

FLUSH_S = 0.05
MOST_WAITING = 100_000
"""Requests that wait for a disk; more are dropped, and the counts show it."""
_log = logging.getLogger("uvicorn.error")


class Recorder:
    """The writer of one process."""

    def __init__(self, store: Store, model_name: str, with_text: bool, counters: Counters) -> None:
        self._served = store.path(layout.served(model_name))
        self._with_text, self._counters = with_text, counters
        self._waiting: deque[Served] = deque(maxlen=MOST_WAITING)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._write_all, name="recorder", daemon=True)

    def start(self) -> None:
        self._served.mkdir(parents=True, exist_ok=True)
        self._thread.start()

    def add(self, served: Served) -> None:
        self._waiting.append(served)

    def close(self) -> None:
        """Write the rest."""
        self._closing.set()
        self._thread.join()

    def _write_all(self) -> None:
        while not self._closing.wait(FLUSH_S):
            self._write()
        self._write()

    def _write(self) -> None:
        batch = [self._waiting.popleft() for _ in range(len(self._waiting))]
        self._counters.places[RECORDED] += self._append(batch)

    def _append(self, batch: list[Served]) -> int:
        """Returns how many requests are in the file now."""
        now = time.time()
        lines: list[bytes] = []
        for served in batch:
            try:
                lines.append(line(served, self._with_text, now))
            except Exception:  # the boundary of one request: whatever it holds, those beside it are recorded
                _log.exception("A request could not be recorded")
        day = datetime.fromtimestamp(now, UTC).date().isoformat()
        try:
            if lines:
                append(self._served / f"{day}-{os.getpid()}.jsonl", b"".join(lines))
        except OSError:
            _log.exception("%d requests could not be recorded", len(lines))
            return 0
        return len(lines)
