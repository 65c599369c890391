"""How large the batches of an Arrow file are once they are unpacked, read from their headers.

A batch says where each of its buffers lies, and a compressed buffer begins with the bytes that it inflates to: as many
are allocated before one is inflated. Owns the walk over the headers (flatbuffers, as far as these need it) and the
limit of a batch. Refuses to read a value: pyarrow does, once every batch is known to fit.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from pipeline.traces.sources.compression import Broken, TooLarge
from pipeline.traces.sources.parquet_pages import MAX_PAGE

MAGIC = b"ARROW1"
_SCHEMA, _DICTIONARIES, _BATCHES = 1, 2, 3
"""Fields of a file's footer."""
_VERSION, _HEADER, _CUSTOM = 0, 2, 4
"""Fields of a message."""
_ID, _DATA, _IS_DELTA = 0, 1, 2
"""Fields of a batch of a dictionary."""
_BUFFERS, _COMPRESSION = 2, 3
"""Fields of a batch of rows."""
_V4 = 3
"""The last version of the format in which compression could be a custom word beside the batch."""


def check_batches(source: Any, is_file: bool) -> None:
    """Raises TooLarge where a batch of this memory map, with the dictionaries that it needs, inflates to over
    MAX_PAGE; Broken for headers that are none. Batches that are not compressed stay in the map, however large."""
    held: dict[int, int] = {}
    try:
        for message in _in_file(source) if is_file else pa.ipc.MessageReader.open_stream(source):
            envelope = _FlatTable.root(message.metadata)
            header = envelope.table(_HEADER)
            if header is None or message.type not in ("record batch", "dictionary"):
                continue
            is_old = envelope.number("<h", _VERSION) <= _V4 and envelope.vector(_CUSTOM)[1] > 0
            size = 0
            if message.type == "record batch":
                size = _inflated(header, message.body, is_old)
            elif data := header.table(_DATA):
                number, size_of_data = header.number("<q", _ID), _inflated(data, message.body, is_old)
                if header.number("<b", _IS_DELTA):  # both parts are copied into one
                    size_of_data += held.get(number, 0) + message.body.size
                held[number] = size_of_data
            if (total := size + sum(held.values())) > MAX_PAGE:
                raise TooLarge(f"a batch inflates to {total} bytes, over {MAX_PAGE}")
    except (struct.error, IndexError) as error:
        raise Broken("the Arrow file is damaged") from error


def _in_file(source: Any) -> Iterator[Any]:
    """The messages that a file's footer names: those that a reader of the file reads."""
    end = source.size()
    source.seek(end - len(MAGIC) - 4)
    (length,) = struct.unpack("<i", source.read(4))
    if not 0 < length <= end - len(MAGIC) - 4:
        raise Broken("the Arrow file is damaged")
    source.seek(end - len(MAGIC) - 4 - length)
    footer = _FlatTable.root(source.read_buffer(length))
    for field in (_DICTIONARIES, _BATCHES):
        start, count = footer.vector(field)
        for n in range(count):
            source.seek(footer.at("<q", start + 24 * n))
            yield pa.ipc.read_message(source)


def _inflated(batch: _FlatTable, body: Any, is_old: bool) -> int:
    """Bytes that the buffers of a batch come to; 0 where they are not compressed."""
    if batch.table(_COMPRESSION) is None and not is_old:
        return 0
    size = 0
    start, count = batch.vector(_BUFFERS)
    for n in range(count):
        offset, length = batch.at("<q", start + 16 * n), batch.at("<q", start + 16 * n + 8)
        if length > 8:
            size += max(_unpacked("<q", body, offset), 0)  # -1: this one is not compressed
    return size


class _FlatTable:
    """A table of a flatbuffer. Raises IndexError or struct.error where it points outside of it."""

    def __init__(self, raw: Any, place: int) -> None:
        self._raw, self._place = raw, place
        self._slots = place - self.at("<i", place)

    @classmethod
    def root(cls, raw: Any) -> _FlatTable:
        return cls(raw, _unpacked("<I", raw, 0))

    def at(self, form: str, place: int) -> int:
        return _unpacked(form, self._raw, place)

    def number(self, form: str, field: int) -> int:
        """0 where the field is left out."""
        place = self._field(field)
        return self.at(form, place) if place else 0

    def table(self, field: int) -> _FlatTable | None:
        place = self._field(field)
        return _FlatTable(self._raw, place + self.at("<I", place)) if place else None

    def vector(self, field: int) -> tuple[int, int]:
        """Where its elements begin, and how many there are."""
        place = self._field(field)
        if not place:
            return 0, 0
        start = place + self.at("<I", place)
        return start + 4, self.at("<I", start)

    def _field(self, field: int) -> int:
        """0 where the field is left out."""
        slot = 4 + 2 * field
        offset = self.at("<H", self._slots + slot) if slot < self.at("<H", self._slots) else 0
        return self._place + offset if offset else 0


def _unpacked(form: str, raw: Any, place: int) -> int:
    if place < 0:  # of which Python would count from the end
        raise IndexError(place)
    return struct.unpack_from(form, raw, place)[0]
