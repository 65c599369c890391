"""The parts of a server that is asked by time: one a UTC day, read until it is settled.

A server says nothing of what changed since. So a day counts as changed on each run while it is young, once more when it
is settled, and never after that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Literal, NamedTuple

from pipeline.recipe.traces import LangfuseApiSource, MlflowSource
from pipeline.traces.sources.protocol import Digest, SourcePart


class DayRange(NamedTuple):
    """A day's first moment and the next day's, in UTC."""

    first: datetime
    end: datetime

    @classmethod
    def of(cls, part: SourcePart) -> DayRange:
        first = datetime.combine(date.fromisoformat(part.name.rpartition("/")[2]), datetime.min.time(), UTC)
        return cls(first, first + timedelta(days=1))


class PagedRows:
    """The rows that a server's pages gave of a part: once each, for pages shift while rows come in."""

    def __init__(self) -> None:
        self._marks: set[bytes] = set()

    def is_new(self, content: bytes) -> bool:
        """Whether no page gave this row before."""
        before = len(self._marks)
        self._marks.add(hashlib.sha256(content).digest())
        return len(self._marks) > before

    def identify(self, digest: Digest) -> None:
        """By the rows alone, whatever the pages and the order that they came in."""
        for mark in sorted(self._marks):
            digest.update(mark)


def daily_parts(
    section: LangfuseApiSource | MlflowSource,
    folder: str,
    identity: str,
    holds: Literal["calls", "scores", "attributes"] = "calls",
    days_before: int = 0,
) -> Iterator[SourcePart]:
    """A part for each day from `since` (and `days_before` it) to `until`, or today. `identity`: of what is asked for;
    another one is another version of every day."""
    now = datetime.now(UTC)
    day = section.since - timedelta(days=days_before)
    while day <= min(section.until or now.date(), now.date()):
        settled = (now.date() - day).days > section.settled_after_days
        state = "settled" if settled else now.isoformat()
        yield SourcePart(f"{folder}/{day.isoformat()}", f"{identity} {state}", 0, holds)
        day += timedelta(days=1)
