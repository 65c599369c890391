"""The sheet that people fill in: CSV as spreadsheets write and read it, or JSON lines with the same fields.

A sheet shows what was asked and answered; never the reward or the stratum, which would anchor a reviewer. Texts are
hostile: a cell that a spreadsheet could take for a formula is disarmed, whatever separator it reads the file with
(OWASP, CSV injection). What comes back is read as it is found: comma, semicolon or tab, UTF-8, UTF-16 or an old code
page. Only `item` (else `trace_id`), `human_score` and `human_reference` are believed. Owns no file names.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

COLUMNS = ("item", "trace_id", "prompt", "completion", "reference", "human_score", "human_reference", "comment")
"""`item` is a key of letters alone: spreadsheets turn ids like 12e4 or 0042 into numbers."""
LOWEST, HIGHEST = 1, 5
MAX_CELL = 30_000
"""Excel's limit is 32,767 characters a cell; the whole text is in the sample."""

# A character that begins a formula (full-width ones do in East Asian versions), and the run before it.
_FORMULA = re.compile("(?<![\\s;\"'])([\\s;\"']*)([=+\\-@\uff1d\uff0b\uff0d\uff20])")
_ENDS_A_CELL = re.compile(r"[\n;]")
# Control characters cut cells off or are refused; their pictures are harmless. Line feeds remain, tabs become spaces.
_CONTROLS = {code: chr(0x2400 + code) for code in range(32)} | {0x7F: chr(0x2421), 0x09: "    ", 0x0A: "\n"}


class ReviewAnswer(NamedTuple):
    """One row that has a score, or one that cannot be used and says why; of the two, `problem` is then not empty."""

    item: str
    trace_id: str
    score: float
    problem: str = ""


class WrittenReference(NamedTuple):
    """What a reviewer says the answer is."""

    item: str
    trace_id: str
    reference: str


def render(rows: Iterable[Mapping[str, str]]) -> bytes:
    """The sheet, its last three columns empty. UTF-8 with a mark, without which Excel takes it for a code page."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, quoting=csv.QUOTE_ALL)  # ends rows with CR LF
    writer.writerow(COLUMNS)
    writer.writerows([shown(row.get(name, "")) for name in COLUMNS] for row in rows)
    return codecs.BOM_UTF8 + out.getvalue().encode("utf-8", "replace")


def shown(text: str) -> str:
    """A text as a cell: cut in its middle, for a question stands at the end of its conversation; without control
    characters, and no formula. What was put in is an apostrophe."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").translate(_CONTROLS)
    cell = _FORMULA.sub(_disarmed, lines)
    if len(cell) <= MAX_CELL:
        return cell
    half = MAX_CELL // 2
    return f"{cell[:half]}… ({len(cell) - 2 * half:,} characters are cut) …{cell[-half:]}"


def _disarmed(match: re.Match[str]) -> str:
    """Wherever a cell could begin for a reader that splits at semicolons or line ends, where quotes don't hold."""
    run, sign = match.groups()
    return f"{run}'{sign}" if match.start() == 0 or _ENDS_A_CELL.search(run) else match[0]


def answers(content: bytes, json_lines: bool) -> Iterator[ReviewAnswer]:
    """The rows with a score, and those with something else in its place. Raises ValueError for what is no sheet."""
    for number, row in _json_rows(content) if json_lines else _csv_rows(content):
        try:
            score = _score(row.get("human_score"))
        except ValueError as error:
            yield ReviewAnswer("", "", 0.0, f"row {number}: {error}")
            continue
        if score is not None:
            yield ReviewAnswer(str(row.get("item") or "").strip(), str(row.get("trace_id") or "").strip(), score)


def references(content: bytes, json_lines: bool) -> Iterator[WrittenReference]:
    """The rows with an answer of the reviewer's. Raises ValueError for what is no sheet."""
    for _, row in _json_rows(content) if json_lines else _csv_rows(content):
        value = row.get("human_reference")
        text = "" if value is None or isinstance(value, bool) else str(value).strip().removeprefix("'").strip()
        if text:
            yield WrittenReference(str(row.get("item") or "").strip(), str(row.get("trace_id") or "").strip(), text)


def without(
    content: bytes, items: Collection[str], traces: Collection[str], others: Collection[str], json_lines: bool
) -> tuple[bytes, int]:
    """The sheet without the rows of these items, and how many those are. A row whose item is neither one of these nor
    of `others` goes by its trace. Every other byte stays as it is.

    Raises ValueError for what is no sheet, and where several rows ran together, so that nobody can say whose they are.
    """
    text, encoding = _decoded(content)
    ids = {each for trace in traces for each in (trace, shown(trace))}
    kept: list[str] = []
    removed = 0
    for row, source in _json_sources(text) if json_lines else _named_sources(text):
        item, trace = (str(row.get(name) or "").strip() for name in ("item", "trace_id"))
        if item in items or (item not in others and trace in ids):
            removed += 1
        elif (item and not item.isalnum()) or any(each in source for each in items):
            raise ValueError("rows ran together after a broken quote. Save it as CSV again.")
        else:
            kept.append(source)
    return "".join(kept).encode(encoding), removed


def _score(value: Any) -> float | None:
    """A score in [0, 1], None for an empty cell. A decimal comma is one."""
    text = "" if value is None else str(value).strip().lstrip("'")
    if not text:
        return None
    try:
        number = float(text.replace(",", ".")) if not isinstance(value, bool) else 0.0
    except ValueError:
        number = 0.0
    if not LOWEST <= number <= HIGHEST:
        raise ValueError(f"human_score is {text[:40]!r}. Write a number from {LOWEST} to {HIGHEST}, or leave it empty.")
    return (number - LOWEST) / (HIGHEST - LOWEST)


def _csv_rows(content: bytes) -> Iterator[tuple[int, dict[str, str]]]:
    """Rows by the names of the header, numbered as a spreadsheet numbers them."""
    yield from ((number, row) for number, (row, _) in enumerate(_named_sources(_decoded(content)[0]), 1) if row)


def _named_sources(text: str) -> Iterator[tuple[dict[str, str], str]]:
    """Each row by the names of the header, and the text that it was read from; the header and what stands before it
    have no names."""
    names: list[str] = []
    for cells, source in _csv_sources(text):
        yield dict(zip(names, cells, strict=False)), source
        names = names or (_names(cells) if _is_header(cells) else [])


def _csv_sources(text: str) -> Iterator[tuple[list[str], str]]:
    """Each row's cells, and the text that it was read from. Raises ValueError where no row is a sheet's header."""
    lines = list(io.StringIO(text, newline=""))
    header = next((line for line in lines if "human_score" in line.lower()), "")
    reader = csv.reader(lines, delimiter=max(",;\t", key=header.count))
    begin, headed = 0, False
    try:
        for cells in reader:
            headed = headed or _is_header(cells)
            yield cells, "".join(lines[begin : reader.line_num])
            begin = reader.line_num
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num} is not CSV ({error}). Save it as CSV again.") from error
    if not headed:
        raise ValueError(f"no row has the names of {', '.join(COLUMNS)}. Keep the first row of sheet.csv.")


def _names(cells: list[str]) -> list[str]:
    return [name.strip().lower() for name in cells]


def _is_header(cells: list[str]) -> bool:
    return "human_score" in (names := _names(cells)) and ("item" in names or "trace_id" in names)


def _json_rows(content: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, (row, source) in enumerate(_json_sources(_decoded(content)[0]), 1):
        if source.strip():
            if not row:
                raise ValueError(f"line {number} is not a JSON object. Write one object a line.")
            yield number, row


def _json_sources(text: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Each line's object, empty where it is none, and its text."""
    yield from ((_object(source) or {}, source) for source in io.StringIO(text, newline=""))


def _object(line: str) -> dict[str, Any] | None:
    try:
        parsed = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def _decoded(content: bytes) -> tuple[str, str]:
    """The text, and the encoding that gives the same bytes again."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16"), "utf-16"
    for encoding in ("utf-8-sig" if content.startswith(codecs.BOM_UTF8) else "utf-8", "cp1252"):
        try:
            return content.decode(encoding), encoding
        except UnicodeDecodeError:
            continue
    return content.decode("latin-1"), "latin-1"
