"""The watermark: which parts of the source were read, at which version, and which days they touched, written after
those days are in the table; and the stage's account for people, without a word of a trace."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import NamedTuple

from pydantic import Field

from pipeline.core import layout
from pipeline.core.locations import Uri
from pipeline.core.storage import Record, Store
from pipeline.recipe.traces import Traces
from pipeline.traces.lake import LakeConfig, open_lake
from pipeline.traces.records import GovernedTraces
from pipeline.traces.scope import Producer
from pipeline.traces.sources.protocol import SourcePart


class ReadPart(Record):
    """A part as it was read. `version` is empty when it broke off: it is then read again at the next run."""

    version: str
    sha256: str
    bytes: int
    holds: str
    days: tuple[str, ...]
    """Days that have rows of it, and the day in its name."""
    annotates: tuple[str, ...] = ()
    """Days of the traces that its scores are about."""


class Watermark(Record):
    source: Uri = ""
    reader: str = ""
    """Which reader it was read with."""
    parts: Mapping[str, ReadPart] = Field(default={})

    @property
    def days(self) -> set[str]:
        return {day for part in self.parts.values() for day in part.days}

    @property
    def calls(self) -> set[str]:
        return {name for name, part in self.parts.items() if part.holds == "calls"}

    def read_by(self, reader: str) -> "Watermark":
        """The watermark for a reader: parts that another one read are read again."""
        if self.reader == reader:
            return self
        parts = {name: part.model_copy(update={"version": ""}) for name, part in self.parts.items()}
        return Watermark(source=self.source, reader=reader, parts=parts)


class Changes(NamedTuple):
    changed: tuple[SourcePart, ...]
    gone: tuple[str, ...]


def compare(before: Watermark, parts: Iterable[SourcePart]) -> Changes:
    """Parts that are new or changed, and the names of those that are gone."""
    listed = {part.name: part for part in parts}
    current = {name: part.version for name, part in before.parts.items() if part.version}
    changed = tuple(part for part in listed.values() if current.get(part.name) != part.version)
    return Changes(changed, tuple(before.parts.keys() - listed.keys()))


def touched_by(parts: Iterable[ReadPart]) -> set[str]:
    """Days that depend on one of the parts."""
    return {day for part in parts for day in (*part.days, *part.annotates)}


def nothing_counts(governed: GovernedTraces, lake: LakeConfig, settings: Traces, producer: Producer) -> str:
    """One line: why an empty dataset starts no iteration, and what to do."""
    if not governed.admitted:
        rows = sorted(governed.rejected.items(), key=lambda item: -item[1])
        why = f" ({', '.join(f'{reason} {count:,}' for reason, count in rows)})" if rows else ""
        return f"Nothing new: {governed.source} has no trace yet that may be learned from{why}. Run again when it has."
    whose = f"{producer.name} version {producer.version}" if producer.version else f"the base model {producer.name}"
    rows = f"Nothing new: none of the {governed.admitted:,} rows of {governed.source} counts for the champion, {whose}"
    if producer.since is not None and settings.counts == "promoted":
        why = f"all are older than its promotion ({producer.since:%Y-%m-%d %H:%M} UTC). Wait for newer traces"
    else:
        with open_lake(lake) as table:
            models = table.models(day.day for day in governed.days)
        why = f"their models are {', '.join(sorted(models)[:5])}, its names {', '.join(sorted(producer.names))}"
        why += ". Serve it under one of its names"
    return f"{rows}: {why}, or let traces.attribution say which rows count."


def rejected_samples(store: Store, days: Sequence[str], each: int = 2) -> list[tuple[str, str, str]]:
    """Rows (reason, what was seen, file and line), at most `each` per reason, from the ledgers of `days`."""
    samples: dict[str, list[tuple[str, str, str]]] = {}
    for path in (store.path(layout.rejected_rows(day)) for day in days):
        with path.open(encoding="utf-8") if path.exists() else nullcontext(()) as lines:
            for row in (json.loads(line) for line in lines if '"detail":null' not in line):
                shown = samples.setdefault(row["reason"], [])
                if row["detail"] and len(shown) < each:
                    place = f"{row['file'].rpartition('/')[2]}, line {row['line']}"
                    shown.append((row["reason"], row["detail"], place))
    return [row for _, rows in sorted(samples.items()) for row in rows]
