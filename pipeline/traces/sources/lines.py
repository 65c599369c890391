"""Whole lines in blocks of about BLOCK bytes, or the elements of a JSON array. What is over the limit is never held in
memory."""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import NamedTuple

import msgspec

from pipeline.traces.records import Reason
from pipeline.traces.rows import Rejection
from pipeline.traces.sources.files import CHUNK
from pipeline.traces.sources.protocol import BLOCK, MAX_LINE, Broken
from pipeline.traces.sources.shapes import Unreadable

ARRAY = 64 << 20
"""Bytes of a JSON array, which is read at once."""
_BETWEEN = re.compile(r"[\s,]*")
MARK = b"\xef\xbb\xbf"
"""Some programs begin a file of UTF-8 with it."""


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


def blocks(chunks: Iterator[bytes], size: int = BLOCK, max_line: int = MAX_LINE) -> Iterator[LineBatch]:
    """Blocks of the lines in `chunks`, none of which is longer than `max_line`. Broken becomes one last rejection."""
    assert max_line >= CHUNK, "a line inside one chunk is never measured"
    texts: list[bytes] = []
    held, first = 0, 1
    try:
        for piece in _lines(chunks, max_line):
            texts += piece or []
            held += sum(map(len, piece or [])) + 8 * len(piece or [])
            if piece is None:
                detail = f"a line of over {max_line} bytes"
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


def _lines(chunks: Iterator[bytes], max_line: int) -> Iterator[list[bytes] | None]:
    """Whole lines; None for one that is too long."""
    pieces: list[bytes] = []  # of the line that goes on in the next chunk
    length = 0
    for chunk in chain([next(chunks, b"").removeprefix(MARK)], chunks):
        end, *lines = chunk.split(b"\n")
        length += len(end)
        pieces = [*pieces, end] if length <= max_line else []
        if lines:
            yield None if length > max_line else [b"".join(pieces)]
            yield lines[:-1]
            pieces, length = lines[-1:], len(lines[-1])
    if length:
        yield None if length > max_line else [b"".join(pieces)]


def elements(chunks: Iterator[bytes]) -> Iterator[LineBatch]:
    """The elements of a file that is one JSON array, or a page of one as APIs list it; of an array that breaks off,
    those before. Of any other JSON the values, one a line or as `jq .` prints them."""
    read, size = list[bytes](), 0
    try:
        for chunk in chunks:
            if not size and _has_lines(chunk):
                yield from blocks(chain([chunk], chunks))
                return
            size += len(chunk)
            read = [*read, chunk] if size <= ARRAY else []
        if size > ARRAY:
            detail = f"JSON of over {ARRAY} bytes: `jq -c '.[]'` makes lines of an array"
            yield LineBatch(1, [], [Rejection(1, Reason.TOO_LONG, detail=detail)])
            return
        text = b"".join(read).removeprefix(MARK).strip()
        if text.startswith(b"{") and not _is_one(text):
            values, is_whole = _values(text)
            yield LineBatch(1, values if is_whole else text.split(b"\n"), [])
            return
        whole = msgspec.json.decode(text, type=list[msgspec.Raw] | dict[str, msgspec.Raw])
        if isinstance(whole, dict):
            is_page = bytes(whole.get("object", b"")) == b'"list"' or whole.keys() <= {"data", "meta", "error"}
            listed = bytes(whole.get("data", b"")) if is_page else b""
            whole = msgspec.json.decode(listed, type=list[msgspec.Raw]) if listed.startswith(b"[") else [text]
        yield LineBatch(1, [bytes(each) for each in whole], [])
    except (Broken, msgspec.DecodeError, RecursionError) as error:
        reason = error.reason if isinstance(error, Broken) else Reason.TRUNCATED_FILE
        text = b"".join(read).removeprefix(MARK).strip()
        values, _ = _values(text[1:]) if text.startswith(b"[") else ([], False)
        detail = f"the JSON breaks off or is damaged: {error}"
        yield LineBatch(1, values, [Rejection(len(values) + 1, reason, detail=detail)])


def _has_lines(chunk: bytes) -> bool:
    """Whether a file begins with a line that is an object, and goes on."""
    first, _, rest = chunk.removeprefix(MARK).lstrip().partition(b"\n")
    return first[:1] == b"{" and bool(rest.strip()) and _is_one(first)


def _values(text: bytes) -> tuple[list[bytes], bool]:
    """JSON values one after the other, as far as they are such, and whether that is to the end."""
    whole, values, end = text.decode(errors="surrogateescape"), list[bytes](), 0
    with suppress(ValueError, RecursionError):
        while end < len(whole) and (between := _BETWEEN.match(whole, end)):
            _, end = json.JSONDecoder().raw_decode(whole, between.end())
            values.append(whole[between.end() : end].encode(errors="surrogateescape"))
    return values, end == len(whole)


def _is_one(text: bytes) -> bool:
    """Whether JSON is one value, and not a value a line."""
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
        return True
    except msgspec.DecodeError:
        return False


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
