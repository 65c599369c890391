"""The watermark: which parts of the source were read, at which version, and which days they touched.

Owns the question what has to be read again. A part stands in it only after every day that it touches is in the table,
so a crash leaves the watermark behind the truth, never ahead of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from pydantic import Field

from pipeline.locations import Uri
from pipeline.storage import Record
from pipeline.traces.sources.protocol import SourcePart

NAME = "traces/watermark.json"


class ReadPart(Record):
    """A part as it was read. `version` is empty when it broke off: it is then read again at the next run."""

    version: str
    sha256: str
    bytes: int
    holds: str
    days: tuple[str, ...]
    """Days that have rows of it, and the day in its name."""
    annotates: tuple[str, ...] = ()
    """Days of the traces that its scores or attributes are about."""
    retired: bool = False
    """The part is gone because its raw data is past retention; its days stay, and cannot be made again."""


class Watermark(Record):
    source: Uri = ""
    reader: str = ""
    """Which reader it was read with; empty: one of before this was on record."""
    parts: Mapping[str, ReadPart] = Field(default={})

    @property
    def days(self) -> set[str]:
        """Every day that the source holds, or held until its retention."""
        return days_of(self.parts.values())

    @property
    def calls(self) -> set[str]:
        """Names of the parts that hold model calls."""
        return {name for name, part in self.parts.items() if part.holds == "calls"}

    def read_by(self, reader: str) -> Watermark:
        """The watermark as it counts for a reader: what another one read was not read."""
        if self.reader == reader:
            return self
        parts = {name: part.model_copy(update={"version": ""}) for name, part in self.parts.items()}
        return Watermark(source=self.source, reader=reader, parts=parts)


class Changes(NamedTuple):
    """What a listing says against the watermark."""

    changed: tuple[SourcePart, ...]
    gone: tuple[str, ...]
    retired: tuple[str, ...]


def compare(known: Watermark, parts: Iterable[SourcePart], raw_days: int | None, now: datetime) -> Changes:
    """Parts that are new or other than they were; those that are gone; of these, those whose retention is over."""
    listed = {part.name: part for part in parts}
    changed = [p for p in listed.values() if _version(known.parts.get(p.name)) != p.version]
    gone = [name for name, part in known.parts.items() if name not in listed and not part.retired]
    retired: list[str] = []
    if raw_days is not None:
        overdue = (now.date() - timedelta(days=raw_days)).isoformat()
        retired = [name for name in gone if all(day < overdue for day in touched_by([known.parts[name]]))]
    return Changes(tuple(changed), tuple(n for n in gone if n not in retired), tuple(retired))


def days_of(parts: Iterable[ReadPart]) -> set[str]:
    return {day for part in parts for day in part.days}


def touched_by(parts: Iterable[ReadPart]) -> set[str]:
    """Days that are another when one of the parts is."""
    return {day for part in parts for day in (*part.days, *part.annotates)}


def sealed(parts: Mapping[str, ReadPart]) -> set[str]:
    """Days that lost raw data to its retention."""
    return days_of(part for part in parts.values() if part.retired)


def _version(part: ReadPart | None) -> str | None:
    return part.version if part is not None and part.version and not part.retired else None
