"""Rows of a Parquet file as plain records, a bounded number at a time: only the columns that are asked for, maps as
objects, binary strings as the UTF-8 that they are. A file without a column gives records that lack it."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from pipeline.traces.records import Reason
from pipeline.traces.rows import Rejection
from pipeline.traces.sources.files import Files
from pipeline.traces.sources.lines import RecordBatch
from pipeline.traces.sources.protocol import BLOCK, MAX_LINE, Broken, Digest, SourcePart

MAX_ROWS = 65_536
"""Read at once."""
MAX_DICTIONARY = 256 << 20
"""Bytes of a column in a row group up to which its texts are read as a dictionary."""


def records(files: Files, part: SourcePart, digest: Digest, columns: Sequence[str]) -> Iterator[RecordBatch]:
    """The file's rows in batches of about BLOCK bytes. One that cannot be read to its end gives one last rejection."""
    line = size = 0
    # Parquet is read from its end: the file is copied to disk on its way into the digest.
    with tempfile.TemporaryFile() as copy:
        try:
            for chunk in files.stored(part, digest):
                copy.write(chunk)
            metadata = _opened(copy).metadata
            groups = range(metadata.num_row_groups)
            files.limits.check(sum(metadata.row_group(n).total_byte_size for n in groups), part.size)
            for batch, length in _bounded(copy, columns):
                size += length
                files.limits.check(size, part.size)
                if length > MAX_LINE and batch.num_rows == 1:
                    detail = f"a row of over {MAX_LINE} bytes"
                    yield RecordBatch([], [Rejection(line + 1, Reason.TOO_LONG, detail=detail)])
                else:
                    yield _batch(batch, line)
                line += batch.num_rows
        except Broken as error:
            yield RecordBatch([], [Rejection(line + 1, error.reason, detail=str(error))])


def _opened(stream: Any, dictionaries: Collection[str] = ()) -> Any:
    """A Parquet file, without holding what it has stored. Raises Broken."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(stream, buffer_size=1 << 20, pre_buffer=False, read_dictionary=list(dictionaries))
    except (pa.ArrowException, OSError) as error:
        raise Broken("the Parquet file is damaged") from error


def _bounded(stream: Any, columns: Sequence[str]) -> Iterator[tuple[Any, int]]:
    """Batches of at most BLOCK bytes, or one row, each with its bytes, however large a row group is. Raises Broken.

    A text that many rows share is stored once: 100 MB of it in a million rows would be 100 TB of rows. So such columns
    stay dictionaries, and a batch is cut by the lengths that its rows come to.
    """
    import pyarrow as pa

    try:
        file = _opened(stream)
        metadata, wanted = file.metadata, [name for name in file.schema_arrow.names if name in columns]
        stored = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        file = _opened(stream, [name for name in wanted if _is_shared(stored, name)])
        sizes = [(group.num_rows, [c.total_uncompressed_size for c in _chunks(group, wanted)]) for group in stored]
        width = max((sum(bytes) // max(rows, 1) + 1 for rows, bytes in sizes), default=1)
        for batch in file.iter_batches(max(1, min(MAX_ROWS, BLOCK // width)), columns=wanted):
            yield from _cut(batch)
    except (pa.ArrowException, OSError) as error:
        raise Broken("the Parquet file is damaged") from error


def _chunks(group: Any, names: Collection[str]) -> Iterator[Any]:
    chunks = (group.column(number) for number in range(group.num_columns))
    return (chunk for chunk in chunks if chunk.path_in_schema.partition(".")[0] in names)


def _is_shared(groups: Sequence[Any], name: str) -> bool:
    """Whether the column's texts stay a dictionary. A large column does not: the dictionary would hold all of it."""
    chunks = [chunk for group in groups for chunk in _chunks(group, [name])]
    small = [chunk.has_dictionary_page and chunk.total_uncompressed_size <= MAX_DICTIONARY for chunk in chunks]
    return bool(chunks) and all(small) and all(chunk.path_in_schema == name for chunk in chunks)


def _cut(batch: Any) -> Iterator[tuple[Any, int]]:
    """Slices of a batch with their size in bytes, texts counted as often as they are there."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    lengths = np.ones(batch.num_rows, np.int64)
    for column in batch.columns:
        each: Any = None
        if pa.types.is_dictionary(column.type):
            each = pc.take(pc.call_function("binary_length", [column.dictionary]), column.indices)
        elif pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            each = pc.call_function("binary_length", [column])
        if each is None:
            lengths += column.nbytes // max(batch.num_rows, 1)
        else:
            lengths += pc.fill_null(each, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    ends, first = np.cumsum(lengths), 0
    while first < batch.num_rows:
        before = int(ends[first - 1]) if first else 0
        last = max(int(np.searchsorted(ends, before + BLOCK, "right")), first + 1)
        yield batch.slice(first, last - first), int(ends[last - 1]) - before
        first = last


def _batch(batch: Any, line: int) -> RecordBatch:
    import pyarrow as pa

    for at, field in enumerate(batch.schema):
        if pa.types.is_timestamp(field.type) and field.type.unit == "ns":
            batch = batch.set_column(
                at, field.name, batch.column(at).cast(pa.timestamp("us", field.type.tz), safe=False)
            )
    try:
        return RecordBatch(list(enumerate(_plain(batch), line + 1)), [])
    except (ValueError, OverflowError):  # bytes that are no UTF-8, dates that Python does not have: find the row
        rows: list[tuple[int, dict[str, Any]]] = []
        rejected: list[Rejection] = []
    for n in range(batch.num_rows):
        try:
            rows.append((line + n + 1, _plain(batch.slice(n, 1))[0]))
        except (ValueError, OverflowError) as error:
            rejected.append(Rejection(line + n + 1, Reason.MALFORMED, detail=type(error).__name__))
    return RecordBatch(rows, rejected)


def _plain(batch: Any) -> list[dict[str, Any]]:
    rows = batch.to_pylist(maps_as_pydicts="lossy")
    binary = [field.name for field in batch.schema if "binary" in str(field.type)]  # ClickHouse's strings are such
    for row in rows if binary else ():
        row.update({name: row[name].decode() for name in binary if row[name] is not None})
    return rows
