"""Whole rows, in blocks of about BLOCK bytes, whatever the length of a row; and why one of them is refused.

A row is a line, or an element of the JSON array that the file is. Owns their numbers and the limit of one. Refuses to
decode it. A row over the limit is never held in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from pipeline.traces.records import Reason
from pipeline.traces.rows import Rejection
from pipeline.traces.sources.compression import CHUNK, Broken
from pipeline.traces.sources.elements import elements, is_array
from pipeline.traces.sources.protocol import BLOCK, MAX_LINE
from pipeline.traces.sources.shapes import Unreadable


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
    chunks: Iterator[bytes], size: int = BLOCK, max_line: int = MAX_LINE, array: bool = False
) -> Iterator[LineBatch]:
    """Blocks of the rows in `chunks`, none of which is longer than `max_line`; Broken becomes one last rejection.

    `array`: the content may be one JSON array, of whose elements each is a row.
    """
    assert max_line >= CHUNK, "a line inside one chunk is never measured"
    if array:
        array, chunks = is_array(chunks)
    if array:
        yield from _of_array(chunks, size, max_line)
        return
    texts: list[bytes] = []
    begun: list[bytes] = []  # the line that goes on in the next chunk
    held = length = 0
    first = 1
    broken: Broken | None = None
    try:
        for chunk in chunks:
            # A megabyte of empty lines is not a million of them to look at.
            if not length and chunk.endswith(b"\n") and chunk.isspace():
                if texts:
                    yield _block(first, texts)
                first, texts, held = first + len(texts) + chunk.count(b"\n"), [], 0
                continue
            lines = chunk.split(b"\n")
            length += len(lines[0])
            begun = [*begun, lines[0]] if length <= max_line else []
            if len(lines) == 1:
                continue
            if length > max_line:
                yield _block(first, texts, Reason.TOO_LONG, f"a line of over {max_line} bytes")
                first, texts, held = first + len(texts) + 1, [], 0
            else:
                texts.append(b"".join(begun))
            begun, length = [lines[-1]], len(lines[-1])
            texts += lines[1:-1]
            held += len(chunk)
            if held >= size:
                yield _block(first, texts)
                first, texts, held = first + len(texts), [], 0
    except Broken as error:
        broken = error
    if broken:  # the line that had begun belongs to the unread rest
        yield _block(first, texts, broken.reason, str(broken))
    elif length > max_line:
        yield _block(first, texts, Reason.TOO_LONG, f"a line of over {max_line} bytes")
    elif texts or length:
        yield _block(first, [*texts, b"".join(begun)])


def _of_array(chunks: Iterator[bytes], size: int, max_size: int) -> Iterator[LineBatch]:
    texts: list[bytes] = []
    held, first = 0, 1
    broken: Broken | None = None
    try:
        for text in elements(chunks, max_size):
            if text is None:
                yield _block(first, texts, Reason.TOO_LONG, f"an element of over {max_size} bytes")
                first, texts, held = first + len(texts) + 1, [], 0
                continue
            texts.append(text)
            held += len(text)
            if held >= size:
                yield _block(first, texts)
                first, texts, held = first + len(texts), [], 0
    except Broken as error:
        broken = error
    if broken:
        yield _block(first, texts, broken.reason, str(broken))
    elif texts:
        yield _block(first, texts)


def refusal(line: int, error: Exception, trace_id: str | None = None, day: str | None = None) -> Rejection:
    """Why a row cannot be read, never with a word of it: msgspec's messages name types and places alone."""
    if isinstance(error, msgspec.ValidationError):
        return Rejection(line, Reason.SCHEMA, trace_id, day, str(error))
    if isinstance(error, Unreadable):
        return Rejection(line, Reason.UNREADABLE, trace_id, day, str(error))
    if isinstance(error, RecursionError):
        return Rejection(line, Reason.MALFORMED, trace_id, day, "nested too deep")
    if isinstance(error, (msgspec.DecodeError, UnicodeDecodeError)):
        return Rejection(line, Reason.MALFORMED, trace_id, day, str(error))
    return Rejection(line, Reason.SCHEMA, trace_id, day, type(error).__name__)


def _block(first: int, texts: list[bytes], reason: Reason | None = None, detail: str = "") -> LineBatch:
    rejected = [] if reason is None else [Rejection(first + len(texts), reason, detail=detail)]
    return LineBatch(first, texts, rejected)
