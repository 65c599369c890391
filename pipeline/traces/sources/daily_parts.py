"""The parts of a server that is asked by time: one a UTC day, read until it is settled; and the rows of its pages."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from typing import TypeVar

from pipeline.recipe.sources import DailySource, RowsSource
from pipeline.traces.records import Reason
from pipeline.traces.rows import Rejection, Rows
from pipeline.traces.sources.protocol import BLOCK, MAX_LINE, Digest, Holds, SourcePart, named_day

Row = TypeVar("Row")
SETTLED_AFTER_DAYS = 3
"""What comes later, or is changed later, is not seen."""


class ServerAway(ValueError):
    """The server did not answer a request, however often it was asked; with what to do."""


def day_range(part: SourcePart) -> tuple[datetime, datetime]:
    """A day's first moment and the next day's, in UTC."""
    first = datetime.combine(date.fromisoformat(part.name.rpartition("/")[2]), datetime.min.time(), UTC)
    return first, first + timedelta(days=1)


def daily_parts(
    section: DailySource | RowsSource, folder: str, identity: str, holds: Holds = "calls"
) -> Iterator[SourcePart]:
    """A part for each day from `since` to `until`, or today. `identity`: of what is asked for.

    A server does not say what changed: a day counts as changed on each run while it is young, and once when it settles.
    """
    now = datetime.now(UTC)
    day = section.since
    while day and day <= min(section.until or now.date(), now.date()):
        settled = (now.date() - day).days > SETTLED_AFTER_DAYS
        state = "settled" if settled else now.isoformat()
        yield SourcePart(f"{folder}/{day.isoformat()}", f"{identity} {state}", 0, holds)
        day += timedelta(days=1)


def read_pages(
    part: SourcePart,
    digest: Digest,
    pages: Iterator[Iterable[tuple[bytes, Row | None]]],
    add: Callable[[Rows, Row, int], int],
    repeats: bool = True,
) -> Iterator[Rows]:
    """The rows of pages of (content, row), once each where pages repeat rows, as they do that shift while rows come in.
    `add` puts a row into a block after a line, and gives its last line; None is a row that is none. `digest` hashes
    the rows, whatever their order.

    Raises ServerAway when the server is away from the first page on; where it goes away later, the part breaks off.
    """
    marks, total = set[bytes](), 0
    block, held, line = Rows(), 0, 0
    try:
        for page in pages:
            for content, row in page:
                mark = hashlib.sha256(content).digest()
                if mark in marks:
                    continue
                marks.update([mark] if repeats else [])
                total += int.from_bytes(mark)
                held += len(content)
                if row is None or len(content) > MAX_LINE:
                    line += 1
                    reason = Reason.MALFORMED if row is None else Reason.TOO_LONG
                    block.rejected.append(Rejection(line, reason, detail=f"{len(content)} bytes"))
                else:
                    line = add(block, row, line)
                if held >= BLOCK:
                    yield block
                    block, held = Rows(), 0
    except ServerAway as error:
        if not line:
            raise
        block.rejected.append(Rejection(line + 1, Reason.TRUNCATED_FILE, day=named_day(part.name), detail=str(error)))
    digest.update(f"{line} {total}".encode())
    yield block
