"""A small pool of its own for mirrored requests: what does not fit into it is dropped, so no caller waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from pipeline.gateway.counters import SHADOW_DROPPED, SHADOWED, Counters
from pipeline.gateway.upstream import Upstream

MOST = 8
"""Mirrored requests at once."""
TIMEOUT_S = 120.0


class Shadow:
    """The mirrored requests of one worker."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._tasks: set[asyncio.Task[None]] = set()
        self.upstream = Upstream(TIMEOUT_S)

    def run(self, mirrored: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin it, unless the pool is full."""
        if len(self._tasks) >= MOST:
            self._counters.places[SHADOW_DROPPED] += 1
            return
        self._counters.places[SHADOWED] += 1
        task = asyncio.create_task(mirrored())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End those that are under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.upstream.close()
