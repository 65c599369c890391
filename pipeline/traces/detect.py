"""What is this file? Its first rows, or the lines of its text, and the known formats (`pipeline.recipe.formats`). The
floor under the share of admitted rows, below which a source or its kind is wrong."""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from hashlib import sha256
from itertools import islice
from typing import Any, NamedTuple, cast

from pipeline.recipe.formats import Format, formats
from pipeline.recipe.traces import Traces
from pipeline.traces.records import DayReport, Reason, total
from pipeline.traces.sources.files import Files
from pipeline.traces.sources.protocol import Broken, SourcePart
from pipeline.traces.sources.shapes import at, steps
from pipeline.traces.sources.tables import FORMATS, first_records

UNKNOWN = "unknown"
ROWS, FILES = 100, 20
"""Rows that are looked at in a file, and files in a folder."""
OTHERS = "*"
"""Among what a format lacks: any key beside its own."""
ALIKE = 0.5
"""Share of a file's rows that have to be of one format."""
NO_EVIDENCE = (
    *(Reason.ERASED, Reason.NOT_GENERATION, Reason.SUPERSEDED),
    *(Reason.INTERMEDIATE, Reason.HELPER, Reason.DUPLICATE, Reason.NO_PREFERENCE),
)
"""Rows that could not have been admitted, and speak against no source."""


class FileLook(NamedTuple):
    """What a file seems to be."""

    name: str
    format: str
    """Its name in docs/formats.md, or UNKNOWN."""
    rows: int
    """Rows, or lines of text, that were looked at."""
    matching: int
    """How many of them are of the format."""
    keys: tuple[str, ...] = ()
    """Of its first row."""
    fault: str = ""
    """Why its rows cannot be read as they lie, and what to do."""


class Folder(NamedTuple):
    """What a file, folder or prefix seems to be."""

    looks: tuple[FileLook, ...]
    files: int
    """That are there, also those that were not looked at."""

    @property
    def format(self) -> str:
        """That of most rows, if it can be among those that a source reads; UNKNOWN where none is known."""
        rows = Counter[str]()
        for each in self.looks:
            rows[each.format] += each.rows
        return max(rows, key=lambda name: (name != UNKNOWN, kind_of(name) != "none", rows[name]))

    @property
    def rows(self) -> int:
        """Rows of that format that were looked at."""
        return sum(each.rows for each in self.looks if each.format == self.format)

    @property
    def kind(self) -> str:
        return kind_of(self.format)

    @property
    def fault(self) -> str:
        """Why no file of the format can be read as it lies."""
        faults = [each.fault for each in self.looks if each.format == self.format]
        return faults[0] if all(faults) else ""

    @property
    def others(self) -> list[FileLook]:
        """Files of another format. Exports of traces have several: of one kind, they belong together."""
        whole = self.kind in ("langfuse_export", "otel")
        return [
            each
            for each in self.looks
            if each.format != self.format and not (whole and kind_of(each.format) == self.kind)
        ]


def kind_of(name: str) -> str:
    """The kind of source that reads a format; `none` or UNKNOWN where there is none."""
    return formats()[name].kind if name in formats() else UNKNOWN


def look(uri: str) -> Folder:
    """Look at the first rows of a file, or of files spread over a folder or prefix: seconds, whatever their size.
    Raises ValueError when there is nothing, or nothing that can be read."""
    files = Files(uri)
    parts = files.parts(suffixes=("",))
    if not parts:
        raise ValueError(f"{uri} holds no file. Give a file, or a folder or prefix with files in it.")
    chosen = parts[:: -(-len(parts) // FILES)]
    return Folder(tuple(_look(files, part) for part in chosen), len(parts))


def wrong_kind(source: Any) -> str:
    """What the files of a recipe's source look like, where that is another format than the recipe has, and what to do;
    else nothing."""
    try:
        folder = look(source.uri) if getattr(source, "uri", "") and source.kind != "custom" else Folder((), 0)
    except ValueError:
        return ""
    known = formats().get(folder.format) if folder.looks else None
    if known is None or (known.kind == source.kind and getattr(source, "preset", None) in (None, folder.format)):
        return ""
    then = known.note if known.kind == "none" else f"`pt import {source.uri}` writes the section that reads it."
    return f"{source.uri} looks like {folder.format} ({known.title}). {then}"


def refuse_below_floor(label: str, reports: Iterable[DayReport], calls: Collection[str], settings: Traces) -> None:
    """Raises ValueError that says what was admitted of the parts `calls`, what was not, and what to do."""
    files = [file for report in reports for file in report.files if file.name in calls]
    seen, admitted = sum(file.seen for file in files), sum(file.admitted for file in files)
    rejected, floor = total(file.rejected for file in files), settings.min_admitted_share
    eligible = seen - sum(rejected.get(reason, 0) for reason in NO_EVIDENCE)
    if not floor or seen == rejected.get(Reason.ERASED, 0) or (admitted and admitted >= floor * eligible):
        return
    most = sorted(rejected.items(), key=lambda item: -item[1])[:4]
    section = settings.imported.get(label, settings.source)
    place = "traces.imports" if label in settings.imported else "traces.source"
    preset = formats().get(getattr(section, "preset", None) or "")
    mend = f"Mend {place} (its kind is {section.kind}), the keys and regions of traces."
    wrong = wrong_kind(section) or f"{mend} {preset.note if preset else ''}".strip()
    raise ValueError(
        f"{label}: {admitted:,} of {eligible or seen:,} rows admitted, under the floor of {100 * floor:g}%. Rejected: "
        f"{', '.join(f'{reason} {count:,}' for reason, count in most)}. Nothing was published. {wrong} "
        f"Or lower traces.min_admitted_share ({floor:g})."
    )


def format_of(row: Mapping[str, Any]) -> str:
    """The format of one row: of those that fit, the one that asks for most."""
    return max(_fitting(row), key=_asked, default=UNKNOWN)


def _fitting(row: Mapping[str, Any]) -> list[str]:
    return [name for name, each in formats().items() if each.keys and _fits(row, each)]


def _asked(name: str) -> tuple[int, int]:
    known = formats()[name]
    return len(known.keys) + len(known.begins), len(known.lacks)


def _fits(row: Mapping[str, Any], known: Format) -> bool:
    def has(path: str) -> bool:
        return at(row, path) not in (None, "")

    if OTHERS in known.lacks and not row.keys() <= {str(steps(key)[0]) for key in known.keys}:
        return False
    begins = (str(at(row, path)).startswith(text) for path, text in known.begins.items())
    return all(map(has, known.keys)) and not any(map(has, known.lacks)) and all(begins)


def _look(files: Files, part: SourcePart) -> FileLook:
    rows, fault = first_records(files, part, ROWS), ""
    if not rows:
        text = _head(files, part)
        if (one := _first_value(text)) is None:
            return _of_text(part.name, text)
        rows, fault = [one], "its objects go over several lines: `jq -c .` makes a line of each"
    elif not part.name.removesuffix(".gz").endswith(FORMATS):
        fault = "its name says no format: give JSON lines a name that ends in .jsonl"
    (name, matching), *_ = Counter(map(format_of, rows)).most_common(1)
    if matching < ALIKE * len(rows):  # a proxy logs bodies of several APIs: that they are bodies is what they share
        fitting = Counter(name for row in rows for name in _fitting(row))
        name, matching = max(fitting.items(), key=lambda each: (each[1], _asked(each[0])), default=(UNKNOWN, 0))
    if matching < ALIKE * len(rows):
        name = UNKNOWN
    return FileLook(part.name, name, len(rows), matching, tuple(map(str, rows[0])), fault)


def _head(files: Files, part: SourcePart) -> str:
    try:
        return next(files.chunks(part, sha256()), b"").decode("latin-1")
    except Broken:
        return ""


def _first_value(text: str) -> dict[str, Any] | None:
    """The object that a text of objects over several lines begins with."""
    try:
        value, _ = json.JSONDecoder().raw_decode(text.lstrip())
    except (ValueError, RecursionError):
        return None
    return cast(dict[str, Any], value) if isinstance(value, dict) else None


def _of_text(name: str, text: str) -> FileLook:
    lines = [line for line in islice(text.split("\n"), ROWS) if line.strip()]
    counts = {
        each: sum(bool(re.match(known.line, line)) for line in lines) for each, known in formats().items() if known.line
    }
    best = max(counts, key=lambda each: counts[each], default=UNKNOWN)
    return FileLook(name, best if counts.get(best) else UNKNOWN, len(lines), counts.get(best, 0))
