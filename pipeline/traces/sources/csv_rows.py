"""Rows of a CSV file as plain records, a bounded number at a time: RFC 4180, a header, texts of many lines.

Owns the header and the count of columns. A field is text, as everything in CSV; an empty one is null. Refuses to
decode what is in one. A row of over MAX_LINE bytes is skipped and counted, and never held in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from csv import Error, field_size_limit, reader
from typing import Any

from pipeline.traces.records import Reason
from pipeline.traces.rows import Rejection
from pipeline.traces.sources.compression import Broken
from pipeline.traces.sources.elements import MARK
from pipeline.traces.sources.parquet import RecordBatch
from pipeline.traces.sources.protocol import BLOCK, MAX_LINE

_QUOTE, _END = b'"', b"\n"


class BadHeader(Broken):
    """A file of which no row can be told, for the first one gives no names."""

    reason = Reason.MALFORMED


def records(chunks: Iterator[bytes], max_row: int = MAX_LINE) -> Iterator[RecordBatch]:
    """The file's rows in batches of about BLOCK bytes, by the names of its header; a row's line is its place, from 1.

    A row of more or fewer fields than the header has is rejected; a file that breaks off gives one last rejection, and
    so does one without a readable header.
    """
    header: list[str] | None = None
    rows: list[tuple[int, dict[str, Any]]] = []
    rejected: list[Rejection] = []
    line = size = 0
    broken: Broken | None = None
    try:
        for text in raw_rows(chunks, max_row):
            if header is None:
                header = header_of(text) if text is not None else []
                continue
            if text is not None and not text.strip():
                continue
            line += 1
            outcome = record(header, text)
            if isinstance(outcome, dict):
                rows.append((line, outcome))
            else:
                rejected.append(Rejection(line, outcome, detail="" if text else f"a row of over {max_row} bytes"))
            size += len(text or b"")
            if size >= BLOCK:
                yield RecordBatch(rows, rejected)
                rows, rejected, size = [], [], 0
    except Broken as error:
        broken = error
    if broken:
        rejected.append(Rejection(line + 1, broken.reason, detail=str(broken)))
    if rows or rejected:
        yield RecordBatch(rows, rejected)


def record(header: list[str], text: bytes | None) -> dict[str, Any] | Reason:
    """A row by the names of the header, or why it is none."""
    if text is None:
        return Reason.TOO_LONG
    try:
        values = fields(text)
    except (ValueError, Error):  # no UTF-8, or text after a quote
        return Reason.MALFORMED
    if len(values) != len(header):
        return Reason.MALFORMED
    return {name: field or None for name, field in zip(header, values, strict=True)}


def header_of(text: bytes) -> list[str]:
    """The names in a file's first row. Raises BadHeader."""
    try:
        return fields(text)
    except (ValueError, Error) as error:
        raise BadHeader("the CSV's first row is no header in UTF-8: save the file as UTF-8") from error


def fields(text: bytes) -> list[str]:
    """The fields of one row, which is whole: quotes are balanced in it."""
    line = text.removeprefix(MARK).decode().removesuffix("\r")
    before = field_size_limit(MAX_LINE)  # of the whole process, and 128 KB: others' readers keep theirs
    try:
        return next(reader([line]), [])
    finally:
        field_size_limit(before)


def raw_rows(chunks: Iterator[bytes], max_row: int) -> Iterator[bytes | None]:
    """Whole rows: a line ends one only where the quotes before it are balanced. None for one that is too long.

    Raises Broken for a file that ends inside quotes.
    """
    pieces: list[bytes] = []
    length, quoted = 0, False
    for chunk in chunks:
        *ended, rest = chunk.split(_END)
        for piece in ended:
            quoted ^= piece.count(_QUOTE) % 2 == 1
            length += len(piece) + 1
            pieces = [] if length > max_row else _appended(pieces, piece, _END)
            if not quoted:
                yield None if length > max_row else b"".join(pieces[:-1])
                pieces, length = [], 0
        quoted ^= rest.count(_QUOTE) % 2 == 1
        length += len(rest)
        pieces = [] if length > max_row else _appended(pieces, rest)
    if quoted:
        raise Broken("the CSV breaks off in a text")
    if length:
        yield None if length > max_row else b"".join(pieces)


def _appended(pieces: list[bytes], *more: bytes) -> list[bytes]:
    pieces.extend(more)
    return pieces
