"""How large the pages of a Parquet file are, read from their headers: a reader holds at least one of them whole.

A page says how many bytes it inflates to and how many values it has; what the footer says of its column need not be
true. Owns the walk over the headers (thrift's compact protocol, as far as a page header needs it), the limit of a page,
and how many rows can be read at once. Refuses to read a value.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from pipeline.traces.sources.compression import Broken, TooLarge

MAX_PAGE = 128 << 20
"""Inflated. Writers make pages of about a mebibyte; the largest default among them is 100 MB."""
MAX_BATCH = 32 << 20
"""Bytes of the rows that are read at once, at the most, where it is more than one."""
MAX_ROWS = 65_536
MAX_INDEX = 256 << 20
"""Bytes of a column's data pages up to which its texts are read as a dictionary: one that grows with every new text."""
_HEADER = 1 << 12
_LONGEST_HEADER = 1 << 20
_STOP, _BYTE, _DOUBLE, _BINARY, _STRUCT = 0, 3, 7, 8, 12
_BOOLEANS, _INTEGERS, _LISTS = (1, 2), (4, 5, 6), (9, 10)
_INFLATED, _STORED, _DATA, _DICTIONARY, _DATA_V2 = 2, 3, 5, 7, 8
_VALUES = 1


Fields = dict[int, "int | Fields"]


class ParquetBatches(NamedTuple):
    """How a file is to be read."""

    rows: int
    """At once."""
    dictionaries: frozenset[str]
    """Columns whose texts are stored once for many rows: they are to stay so."""


def reading(stream: Any, metadata: Any, columns: Collection[str] | None = None) -> ParquetBatches:
    """Raises TooLarge for a page over MAX_PAGE in one of these top-level columns, Broken for what is no page."""
    width = 1
    dictionaries: set[str] = set()
    for group in range(metadata.num_row_groups):
        together = 0
        for number in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(number)
            name = chunk.path_in_schema
            if columns is not None and name.partition(".")[0] not in columns:
                continue
            pages = _pages(stream, chunk, metadata.schema.column(number).max_repetition_level > 0)
            if pages.dictionary and pages.data <= MAX_INDEX and "." not in name:
                dictionaries.add(name)
                together += 4
            else:
                together += max(pages.width, pages.dictionary)
        width = max(width, together)
    return ParquetBatches(max(1, min(MAX_ROWS, MAX_BATCH // width)), frozenset(dictionaries))


class _Pages(NamedTuple):
    """Bytes, inflated: of the dictionary, of the other pages, and of a row in the page with the longest rows."""

    dictionary: int
    data: int
    width: int


def _pages(stream: Any, chunk: Any, repeats: bool) -> _Pages:
    """`repeats`: a page does not say how many rows its values are; it is counted as one."""
    offset = chunk.dictionary_page_offset if chunk.has_dictionary_page else None
    at = min(filter(None, (chunk.data_page_offset, offset)), default=0)  # 0: it has no such page, for want of rows
    end = at + (chunk.total_compressed_size if at else 0)
    dictionary = data = width = 0
    while at < end:
        fields, length = _header_at(stream, at)
        inflated, stored = fields.get(_INFLATED), fields.get(_STORED)
        if not isinstance(inflated, int) or not isinstance(stored, int) or inflated < 0 or stored < 0:
            raise Broken("the Parquet file is damaged")
        if inflated > MAX_PAGE:
            raise TooLarge(f"a page of column {chunk.path_in_schema} inflates to {inflated} bytes, over {MAX_PAGE}")
        if _DICTIONARY in fields:
            dictionary = max(dictionary, inflated)
        else:
            head = fields.get(_DATA) or fields.get(_DATA_V2)
            values = head.get(_VALUES) if isinstance(head, dict) else None
            data += inflated
            width = max(width, inflated // (1 if repeats or not isinstance(values, int) else max(values, 1)))
        at += length + stored
    return _Pages(dictionary, data, width)


def _header_at(stream: Any, at: int) -> tuple[Fields, int]:
    """A page's header, and its bytes."""
    size = _HEADER
    while True:
        stream.seek(at)
        header = _Header(stream.read(size))
        try:
            return header.struct(0), header.at
        except IndexError as error:  # it goes on
            if size >= _LONGEST_HEADER:
                raise Broken("the Parquet file is damaged") from error
            size *= 16
        except (KeyError, RecursionError) as error:
            raise Broken("the Parquet file is damaged") from error


class _Header:
    """A struct in thrift's compact protocol. Raises IndexError where the bytes end before it does."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self.at = 0

    def struct(self, depth: int) -> Fields:
        """Its whole numbers and structs by the ids of their fields."""
        fields: Fields = {}
        field = 0
        while (head := self._byte()) != _STOP:
            field = field + (head >> 4) if head >> 4 else self._number()
            value = self._value(head & 15, depth)
            if value is not None:
                fields[field] = value
        return fields

    def _value(self, kind: int, depth: int, inside: bool = False) -> int | Fields | None:
        if depth > 8:
            raise KeyError(kind)
        if kind in _INTEGERS:
            return self._number()
        if kind == _BYTE or (inside and kind in _BOOLEANS):
            self._skip(1)
        elif kind == _DOUBLE:
            self._skip(8)
        elif kind == _BINARY:
            self._skip(self._varint())
        elif kind in _LISTS:
            head = self._byte()
            for _ in range(head >> 4 if head >> 4 < 15 else self._varint()):
                self._value(head & 15, depth + 1, inside=True)
        elif kind == _STRUCT:
            return self.struct(depth + 1)
        elif kind not in _BOOLEANS:  # a page header has no map
            raise KeyError(kind)
        return None

    def _byte(self) -> int:
        self.at += 1
        return self._raw[self.at - 1]

    def _skip(self, size: int) -> None:
        self.at += size
        if self.at > len(self._raw):
            raise IndexError(size)

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise KeyError(shift)

    def _number(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
