"""The texts in columns of Arrow, of any type, a bounded number of bytes at a time.

Owns the way through lists, structs, maps, unions, dictionaries and runs to the arrays of texts. Refuses views that come
to more than a batch may hold: a text that many rows point to is stored once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.erasure.units import OWNERS
from pipeline.traces.sources.compression import TooLarge
from pipeline.traces.sources.parquet_pages import MAX_PAGE, MAX_ROWS

PIECE = 1 << 20
"""Bytes of texts that are handed on at once."""


def columns(batch: Any) -> Iterator[bytes]:
    """The texts of a batch as `quoted` gives them, and the whole numbers that say whose a row is, with their names."""
    for field, column in zip(batch.schema, batch.columns, strict=True):
        yield from quoted(column)
        for name, numbers in _owner_numbers(field.name, column):
            for at in range(0, len(numbers), MAX_ROWS):
                values = {value for value in numbers.slice(at, MAX_ROWS).to_pylist() if value is not None}
                yield b"".join(b'"%s":%d\n' % (name.encode(), value) for value in values)


def quoted(array: Any) -> Iterator[bytes]:
    """The texts in a column, each in quotes on a line of its own, about PIECE bytes at a time. Raises TooLarge."""
    for texts in text_arrays(array):
        for at in range(0, len(texts), MAX_ROWS):
            yield from _pieces(texts.slice(at, MAX_ROWS))


def _pieces(texts: Any) -> Iterator[bytes]:
    ends = np.cumsum(_lengths(texts))
    first = 0
    while first < len(texts):
        before = int(ends[first - 1]) if first else 0
        last = max(int(np.searchsorted(ends, before + PIECE, "right")), first + 1)
        if ends[last - 1] - before > PIECE:  # one text, which may be as large as the file
            buffer = memoryview(texts[first].as_buffer())
            yield b'"'
            yield from (bytes(buffer[at : at + PIECE]) for at in range(0, len(buffer), PIECE))
            yield b'"\n'
        else:
            values = [value for value in texts.slice(first, last - first).cast(pa.large_binary()).to_pylist() if value]
            if values:
                yield b'"' + b'"\n"'.join(values) + b'"\n'
        first = last


def _lengths(texts: Any) -> Any:
    """Bytes of each text."""
    types = pa.types
    if types.is_string_view(texts.type) or types.is_binary_view(texts.type):
        raw = np.frombuffer(texts.buffers()[1], np.int32).reshape(-1, 4)[:, 0]  # 16 bytes each: the length comes first
        lengths = np.maximum(raw[texts.offset : texts.offset + len(texts)].astype(np.int64), 0)
        if (total := int(lengths.sum())) > MAX_PAGE:
            raise TooLarge(f"a batch inflates to {total} bytes, over {MAX_PAGE}")
        return lengths
    return pc.fill_null(pc.call_function("binary_length", [texts]), 0).to_numpy(zero_copy_only=False).astype(np.int64)


def text_arrays(array: Any) -> Iterator[Any]:
    """Every array of strings in a column."""
    kind = array.type
    types = pa.types
    if isinstance(array, pa.ChunkedArray):
        for chunk in array.chunks:
            yield from text_arrays(chunk)
    elif isinstance(array, pa.ExtensionArray):
        yield from text_arrays(array.storage)
    elif types.is_dictionary(kind):
        yield from text_arrays(array.dictionary)
    elif types.is_struct(kind):
        for field in array.flatten():
            yield from text_arrays(field)
    elif types.is_union(kind):
        for number in range(kind.num_fields):
            yield from text_arrays(array.field(number))
    elif types.is_map(kind):
        yield from text_arrays(array.keys)
        yield from text_arrays(array.items)
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        yield from text_arrays(array.flatten())
    elif types.is_list_view(kind) or types.is_large_list_view(kind) or types.is_run_end_encoded(kind):
        yield from text_arrays(array.values)
    elif is_text(kind):
        yield array


def is_text(kind: Any) -> bool:
    types = pa.types
    tests = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary, types.is_string_view)
    return any(test(kind) for test in (*tests, types.is_binary_view, types.is_fixed_size_binary))


def _owner_numbers(name: str, array: Any) -> Iterator[tuple[str, Any]]:
    """Columns of whole numbers that say whose a row is, with their names."""
    if name in OWNERS and pa.types.is_integer(array.type):
        yield name, array
    elif pa.types.is_struct(array.type):
        for inner, values in zip(array.type, array.flatten(), strict=True):
            yield from _owner_numbers(inner.name, values)
