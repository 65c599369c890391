"""Whole rows, in blocks of about BLOCK bytes, whatever the length of a row: lines, elements of the JSON array that a
file is, records of CSV. A row over the limit is never held in memory."""

import re
from collections.abc import Callable, Iterator
from csv import Error, field_size_limit, reader
from itertools import chain
from typing import Any, NamedTuple

import msgspec

from pipeline.traces.records import Reason
from pipeline.traces.rows import Rejection
from pipeline.traces.sources.files import CHUNK, WHOLE, bare_name
from pipeline.traces.sources.protocol import BLOCK, MAX_LINE, Broken
from pipeline.traces.sources.shapes import Unreadable

field_size_limit(MAX_LINE)  # of the whole process, and 128 KB otherwise
MARK = b"\xef\xbb\xbf"
"""Some programs begin a file of UTF-8 with it."""
# A whole text, the beginning of one that goes on in the next chunk, a bracket or a comma.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|"|[\[\]{},]', re.DOTALL)
Pieces = Iterator[list[bytes] | int | None]
"""Whole rows; a number of blank ones; None for a row that is too long."""


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


class RecordBatch(NamedTuple):
    records: list[tuple[int, dict[str, Any]]]
    """With their place in the file, from 1."""
    rejected: list[Rejection]


def blocks(
    chunks: Iterator[bytes], size: int = BLOCK, max_line: int = MAX_LINE, array: bool = False
) -> Iterator[LineBatch]:
    """Blocks of the rows in `chunks`, none of which is longer than `max_line`; Broken becomes one last rejection.
    `array`: the content may be one JSON array, of whose elements each is a row."""
    assert max_line >= CHUNK, "a line inside one chunk is never measured"
    if array:
        # Blanks beyond a chunk are no array's.
        head, rest = begun(chunks, lambda head: len(head.removeprefix(MARK).lstrip()) >= len(MARK) or len(head) > CHUNK)
        head = head.removeprefix(MARK)
        chunks = chain([head], rest)
        if head.lstrip().startswith(b"["):
            rows = (None if text is None else [text] for text in elements(chunks, max_line))
            return batched(rows, f"an element of over {max_line} bytes", size)
    return batched(_lines(chunks, max_line), f"a line of over {max_line} bytes", size)


def batched(pieces: Pieces, too_long: str, size: int = BLOCK) -> Iterator[LineBatch]:
    """Blocks of about `size` bytes; Broken becomes one last rejection."""
    texts: list[bytes] = []
    held, first = 0, 1
    try:
        for piece in pieces:
            if isinstance(piece, list):
                texts += piece
                held += sum(map(len, piece)) + len(piece)
                if held < size:
                    continue
            if texts or piece is None:
                yield _block(first, texts, Reason.TOO_LONG if piece is None else None, too_long)
            first += len(texts) + (piece if isinstance(piece, int) else piece is None)
            texts, held = [], 0
    except Broken as error:  # a row that had begun belongs to the unread rest
        yield _block(first, texts, error.reason, str(error))
        return
    if texts:
        yield _block(first, texts)


def as_one(chunks: Iterator[bytes], too_long: str, max_size: int = WHOLE) -> Iterator[LineBatch]:
    """All of the content as one row, of which no more than `max_size` bytes are held."""

    def whole() -> Pieces:
        read: list[bytes] = []
        size = 0
        for chunk in chunks:
            size += len(chunk)
            read = [*read, chunk] if size <= max_size else []
        yield [b"".join(read)] if size <= max_size else None

    return batched(whole(), too_long)


def _block(first: int, texts: list[bytes], reason: Reason | None = None, detail: str = "") -> LineBatch:
    rejected = [] if reason is None else [Rejection(first + len(texts), reason, detail=detail)]
    return LineBatch(first, texts, rejected)


def _lines(chunks: Iterator[bytes], max_line: int) -> Pieces:
    pieces: list[bytes] = []  # of the line that goes on in the next chunk
    length = 0
    for chunk in chunks:
        # A megabyte of empty lines is not a million of them to look at.
        if not length and chunk.endswith(b"\n") and chunk.isspace():
            yield chunk.count(b"\n")
            continue
        end, *lines = chunk.split(b"\n")
        length += len(end)
        pieces = [*pieces, end] if length <= max_line else []
        if lines:
            yield None if length > max_line else [b"".join(pieces)]
            yield lines[:-1]
            pieces, length = lines[-1:], len(lines[-1])
    if length:
        yield None if length > max_line else [b"".join(pieces)]


def begun(chunks: Iterator[bytes], enough: Callable[[bytes], bool] = bool) -> tuple[bytes, Iterator[bytes]]:
    """The beginning of some content, as long as `enough` wants it, and the rest, which raises what reading raised."""
    head, rest = b"", chunks
    try:
        while not enough(head):
            head += next(chunks)
    except StopIteration:
        pass
    except Broken as error:
        rest = _broken(error)
    return head, rest


def _broken(error: Broken) -> Iterator[bytes]:
    yield from ()
    raise error


def may_be_array(name: str) -> bool:
    """Whether a file of this name may be one array: JSON lines are what their name says."""
    return not bare_name(name).endswith((".jsonl", ".ndjson"))


def elements(chunks: Iterator[bytes], max_size: int) -> Iterator[bytes | None]:
    """The elements of the array that `chunks` are, and what follows it; None for one of over `max_size` bytes. Raises
    Broken when the array or the file breaks off."""
    held = b""
    depth = at = begin = 0  # `begin`: of the element in `held`; `at`: how far `held` was looked at
    over = False
    for chunk in chunks:
        held += chunk
        while token := _TOKEN.search(held, at):
            start, at = token.span()
            mark = held[start]
            if mark == ord('"'):
                if at == start + 1:  # it goes on
                    at = start
                    break
                continue
            if depth == 1 and mark in b",]}":
                if over or start - begin > max_size:
                    yield None
                elif element := held[begin:start].strip():
                    yield element
            depth += (mark in b"[{") - (mark in b"]}")
            if depth == 0 or (depth == 1 and mark in b"[,"):
                begin, over = at, False
        else:
            at = len(held)
        if over or len(held) - begin > max_size:  # of what is too long, only how its text goes on is held
            tail = held[at:]
            escaped = (len(tail) - len(tail.rstrip(b"\\"))) % 2
            held, at, over = b'"' + b"\\" * escaped if tail else b"", 0, True
        else:
            held, at = held[begin:], at - begin
        begin = 0
    if depth:
        raise Broken("the JSON array breaks off")
    if over or held.strip():
        yield None if over else held.strip()


def csv_records(chunks: Iterator[bytes], max_row: int = MAX_LINE) -> Iterator[RecordBatch]:
    """The rows of a CSV file (RFC 4180) by the names of its header; an empty field is null. A row's line is its place,
    from 1. A file that breaks off, or has no readable header, gives one last rejection."""
    header: list[str] | None = None
    line = 0
    for block in batched(_csv_rows(chunks, max_row), f"a row of over {max_row} bytes"):
        rows: list[tuple[int, dict[str, Any]]] = []
        rejected: list[Rejection] = []
        for number, text in enumerate(filter(bytes.strip, block.texts), line + (header is not None)):
            try:
                fields = next(reader([text.removeprefix(MARK).decode().removesuffix("\r")]), [])
            except (ValueError, Error):  # no UTF-8, or text after a quote
                fields = None
            if header is None and fields is None:
                detail = "the CSV's first row is no header in UTF-8: save the file as UTF-8"
                yield RecordBatch([], [Rejection(1, Reason.MALFORMED, detail=detail)])
                return
            if header is None:
                header = fields
            elif fields is None or len(fields) != len(header):
                rejected.append(Rejection(number, Reason.MALFORMED))
            else:
                rows.append((number, {name: field or None for name, field in zip(header, fields, strict=True)}))
            line = number
        rejected += [Rejection(line + 1, rest.reason, detail=rest.detail) for rest in block.rejected]
        line += len(block.rejected)
        yield RecordBatch(rows, rejected)
        if header is None:
            return


def _csv_rows(chunks: Iterator[bytes], max_row: int) -> Pieces:
    """A line ends a row only where the quotes before it are balanced."""
    pieces: list[bytes] = []
    length, quoted = 0, False
    for chunk in chunks:
        *ended, rest = chunk.split(b"\n")
        for piece, end in [*((piece, b"\n") for piece in ended), (rest, b"")]:
            quoted ^= piece.count(b'"') % 2 == 1
            length += len(piece) + len(end)
            if length > max_row:
                pieces.clear()
            else:
                pieces.append(piece + end)
            if end and not quoted:
                yield None if length > max_row else [b"".join(pieces)[:-1]]
                pieces, length = [], 0
    if quoted:
        raise Broken("the CSV breaks off in a text")
    if length:
        yield None if length > max_row else [b"".join(pieces)]


def refusal(line: int, error: Exception, trace_id: str | None = None, day: str | None = None) -> Rejection:
    """Why a row cannot be read, without a word of it: messages of msgspec name types and places."""
    if isinstance(error, RecursionError):
        return Rejection(line, Reason.MALFORMED, trace_id, day, "nested too deep")
    if isinstance(error, msgspec.ValidationError):
        return Rejection(line, Reason.SCHEMA, trace_id, day, str(error))
    if isinstance(error, Unreadable):
        return Rejection(line, Reason.UNREADABLE, trace_id, day, str(error))
    if isinstance(error, (msgspec.DecodeError, UnicodeDecodeError)):
        return Rejection(line, Reason.MALFORMED, trace_id, day, str(error))
    return Rejection(line, Reason.SCHEMA, trace_id, day, type(error).__name__)
