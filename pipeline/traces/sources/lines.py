"""Whole rows in blocks of about BLOCK bytes: lines, or elements of the JSON array that a file is. A line over the limit
is never held in memory."""

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

import msgspec

from pipeline.traces.records import Reason
from pipeline.traces.rows import Rejection
from pipeline.traces.sources.files import CHUNK, bare_name
from pipeline.traces.sources.protocol import BLOCK, MAX_LINE, Broken
from pipeline.traces.sources.shapes import Unreadable

WHOLE = 64 << 20
"""A JSON value over many lines is read at once, and may have so many bytes."""
MARK = b"\xef\xbb\xbf"
"""Some programs begin a file of UTF-8 with it."""
Pieces = Iterator[list[bytes] | None]
"""Whole rows; None for one that is too long."""


class LineBatch(NamedTuple):
    first: int
    """Number of its first line, from 1."""
    texts: list[bytes]
    """Whole lines, without their ends."""
    rejected: list[Rejection]
    """What comes after them: a line that is too long, or the rest of a file that breaks off."""

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """The numbered lines without the blank ones."""
        for number, text in enumerate(self.texts, self.first):
            if text and not text.isspace():
                yield number, text


def blocks(
    chunks: Iterator[bytes], name: str = ".jsonl", size: int = BLOCK, max_line: int = MAX_LINE
) -> Iterator[LineBatch]:
    """Blocks of the lines in `chunks`, none of which is longer than `max_line`. A file whose `name` does not say that
    it is JSON lines may be one JSON value instead: an array, whose elements are rows, or an object over many
    lines. Broken becomes one last rejection."""
    assert max_line >= CHUNK, "a line inside one chunk is never measured"
    texts: list[bytes] = []
    held, first = 0, 1
    try:
        for piece in _rows(chunks, name, max_line):
            texts += piece or []
            held += sum(map(len, piece or [])) + 8 * len(piece or [])
            if piece is None:
                detail = f"a line of over {max_line} bytes, or one value of over {WHOLE}"
                yield LineBatch(first, texts, [Rejection(first + len(texts), Reason.TOO_LONG, detail=detail)])
            elif held >= size:
                yield LineBatch(first, texts, [])
            else:
                continue
            first += len(texts) + (piece is None)
            texts, held = [], 0
    except Broken as error:  # a row that had begun belongs to the unread rest
        yield LineBatch(first, texts, [Rejection(first + len(texts), error.reason, detail=str(error))])
        return
    if texts:
        yield LineBatch(first, texts, [])


def _rows(chunks: Iterator[bytes], name: str, max_line: int) -> Pieces:
    head = next(chunks, b"").removeprefix(MARK)
    begin = head.lstrip()[:MAX_LINE]
    is_value = begin.startswith(b"[") or begin.partition(b"\n")[0].strip() == b"{"
    read = _value if is_value and not bare_name(name).endswith((".jsonl", ".ndjson")) else _lines
    return read(chain([head], chunks), max_line)


def _value(chunks: Iterator[bytes], _: int) -> Pieces:
    """The elements of an array; an object is one row. Raises Broken."""
    read: list[bytes] = []
    size = 0
    for chunk in chunks:
        size += len(chunk)
        read = [*read, chunk] if size <= WHOLE else []
    text = b"".join(read)
    try:
        yield None if size > WHOLE else [bytes(each) for each in msgspec.json.decode(text, type=list[msgspec.Raw])]
    except (msgspec.DecodeError, RecursionError) as error:
        if text.lstrip().startswith(b"["):
            raise Broken("the JSON array breaks off or is damaged") from error
        yield [text]


def _lines(chunks: Iterator[bytes], max_line: int) -> Pieces:
    pieces: list[bytes] = []  # of the line that goes on in the next chunk
    length = 0
    for chunk in chunks:
        end, *lines = chunk.split(b"\n")
        length += len(end)
        pieces = [*pieces, end] if length <= max_line else []
        if lines:
            yield None if length > max_line else [b"".join(pieces)]
            yield lines[:-1]
            pieces, length = lines[-1:], len(lines[-1])
    if length:
        yield None if length > max_line else [b"".join(pieces)]


def refusal(line: int, error: Exception, trace_id: str | None = None, day: str | None = None) -> Rejection:
    """Why a row cannot be read, without a word of it: messages of msgspec name types and places."""
    reason, detail = Reason.SCHEMA, type(error).__name__
    if isinstance(error, RecursionError):
        reason, detail = Reason.MALFORMED, "nested too deep"
    elif isinstance(error, msgspec.ValidationError):
        detail = str(error)
    elif isinstance(error, Unreadable):
        reason, detail = Reason.UNREADABLE, str(error)
    elif isinstance(error, (msgspec.DecodeError, UnicodeDecodeError)):
        reason, detail = Reason.MALFORMED, str(error)
    return Rejection(line, reason, trace_id, day, detail)
