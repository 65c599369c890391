"""What a source is: it lists its parts, and yields the rows of one. A source is made in each worker from its
section of the recipe and its address, so it holds no connection between calls."""

import re
from collections.abc import Iterator
from datetime import date
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from pipeline.recipe.sources import ImportSource
from pipeline.recipe.traces import Traces
from pipeline.traces.records import Reason
from pipeline.traces.rows import Rows

BLOCK = 16 << 20
"""Decoded bytes of the source after which a block of rows is handed on: what bounds the memory of a worker."""
MAX_LINE = 16 << 20
"""A longer line is skipped unread and counted as `too_long`."""
MAX_PART, MAX_RATIO = 64 << 30, 200
"""What one part may inflate to: bytes, and bytes for each stored one. Logs of chats compress 5 to 40 times."""
FREE = 64 << 20
"""Inflated bytes of a part before its ratio counts: a small file of blanks does no harm."""
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
Holds = Literal["calls", "scores"]


class Broken(Exception):
    """A part of the source ends before its end. The text says how, for people."""

    reason = Reason.TRUNCATED_FILE


class TooLarge(Broken):
    """A part of the source inflates beyond its limits: a file to fill a disk or a day with, or no source of traces."""

    reason = Reason.TOO_LARGE


class SourcePart(NamedTuple):
    """One piece of a source that is read on its own, by one process: a file, or a day of a table."""

    name: str
    """Unique in its source and the same at the next listing: the path below the source's root."""
    version: str
    """Changes whenever the content may have: what the watermark compares. An etag, or size and modification time."""
    size: int
    """Bytes as stored (0 where unknown)."""
    holds: Holds = "calls"
    """Scores are read first, and joined to the calls."""
    files: tuple["SourcePart", ...] = ()
    """The small files that it is made of, where it is no file itself. A row's line is then the place of its file."""


def check_size(inflated: int, stored: int) -> None:
    """Raises TooLarge for a part that inflates to more than it may."""
    if inflated > MAX_PART:
        raise TooLarge(f"the file inflates to over {MAX_PART} bytes: write smaller ones")
    if inflated > FREE and inflated > MAX_RATIO * stored:
        raise TooLarge(f"the file inflates to over {MAX_RATIO} times its size")


def named_day(name: str) -> str | None:
    """The date in a part's own name, as YYYY-MM-DD: rows that do not say their day are counted there."""
    for date_text in _DATE.findall(name.rpartition("/")[2]):
        try:
            return date.fromisoformat(date_text).isoformat()
        except ValueError:
            continue
    return None


class Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...


class Source(Protocol):
    """One format at one address. Both methods raise ValueError that says what to do when the source cannot be read."""

    label: str
    """The address for people: never with a password in it."""

    def parts(self) -> list[SourcePart]:
        """What there is now, in name order. Raises ValueError when there is nothing of this format."""
        ...

    def rows(self, part: SourcePart, digest: Digest) -> Iterator[Rows]:
        """The rows of a part in blocks of about BLOCK bytes, and every raw byte that was read into `digest`. A row that
        cannot be read is a Rejection; a part that breaks off, changes or vanishes gives one `truncated_file`."""
        ...


@runtime_checkable
class Probed(Protocol):
    """A source that can be asked whether it is there, for less than its listing costs."""

    def probe(self) -> None:
        """Raises ValueError that says what to do when it cannot be read. Does not wait long."""
        ...


@runtime_checkable
class External(Protocol):
    """A source of which nothing lies under the data root: forgetting a user leaves what it has."""

    label: str

    def remains(self) -> str:
        """What a person has to ask of its owner so that a forgotten user's rows go there too. Names no user."""
        ...


class Address(NamedTuple):
    """A source as it is handed to a worker: its section of the recipe, where it is, and the imports beside it."""

    section: Any
    uri: str
    """Path, `s3://` prefix, or a database URL (which may hold a password: it is never logged)."""
    imports: tuple[tuple[str, ImportSource], ...] = ()
    """By the beginning of the names of their parts. One that is the source itself is among them."""

    def each(self) -> list["Address"]:
        """The source and its imports, each on its own."""
        own = [] if isinstance(self.section, ImportSource) else [self._replace(imports=())]
        return [*own, *(Address(section, section.uri, (("", section),)) for _, section in self.imports)]


def address_of(settings: Traces, uri: str) -> Address:
    """`uri`: of the source."""
    return Address(settings.source, uri, tuple(settings.imported.items()))
