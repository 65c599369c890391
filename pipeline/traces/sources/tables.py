"""Rows of files as plain records, a bounded number at a time, by a file's format: JSON lines, JSON, CSV or Parquet. Of
Parquet only the columns that are asked for, maps as objects, binary strings as the UTF-8 that they are; a file without
a column gives records that lack it."""

import csv
import re
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from pipeline.core.storage import digest_json
from pipeline.traces.records import Reason
from pipeline.traces.rows import Rejection
from pipeline.traces.sources.files import CHUNK, LINES, Files
from pipeline.traces.sources.lines import LineBatch, blocks, elements, refusal
from pipeline.traces.sources.protocol import BLOCK, MAX_LINE, Broken, Digest, SourcePart, check_size, named_day
from pipeline.traces.sources.shapes import plain, steps

MAX_ROWS = 4_096
"""Read at once. A text that many rows share is stored once: so many copies of it are held."""
_ODD = re.compile("binary|decimal|date|time(32|64)|duration|uuid")
"""Types whose values are not those of JSON. ClickHouse writes strings as binary."""


class RecordBatch(NamedTuple):
    records: list[tuple[int, dict[str, Any]]]
    """With their place in the file, from 1."""
    rejected: list[Rejection]


def parquet_records(files: Files, part: SourcePart, digest: Digest, columns: Collection[str]) -> Iterator[RecordBatch]:
    """The file's rows in batches of about BLOCK bytes. One that cannot be read to its end gives one last rejection."""
    line = size = 0
    # Parquet is read from its end: the file is copied to disk on its way into the digest.
    with tempfile.TemporaryFile() as copy:
        try:
            for chunk in files.stored(part, digest):
                copy.write(chunk)
            for batch in _bounded(copy, part, columns):
                size += batch.nbytes
                check_size(size, part.size)
                if batch.nbytes > MAX_LINE and batch.num_rows == 1:
                    detail = f"a row of over {MAX_LINE} bytes"
                    yield RecordBatch([], [Rejection(line + 1, Reason.TOO_LONG, detail=detail)])
                else:
                    yield _batch(batch, line)
                line += batch.num_rows
        except Broken as error:
            yield RecordBatch([], [Rejection(line + 1, error.reason, detail=str(error))])


def _bounded(stream: Any, part: SourcePart, columns: Collection[str] | None) -> Iterator[Any]:
    """Batches of at most BLOCK bytes, or one row; without `columns` of all. Raises Broken."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(stream, buffer_size=1 << 20, pre_buffer=False)
        groups = [file.metadata.row_group(n) for n in range(file.metadata.num_row_groups)]
        check_size(sum(group.total_byte_size for group in groups), part.size)
        width = max([1, *(group.total_byte_size // max(group.num_rows, 1) for group in groups)])
        wanted = [name for name in file.schema_arrow.names if columns is None or name in columns]
        for batch in file.iter_batches(max(1, min(MAX_ROWS, BLOCK // width)), columns=wanted):
            for at, column in enumerate(batch.columns):
                if pa.types.is_dictionary(column.type):
                    batch = batch.set_column(at, wanted[at], column.dictionary_decode())
                elif pa.types.is_timestamp(column.type) and column.type.unit == "ns":
                    in_us = column.cast(pa.timestamp("us", column.type.tz), safe=False)
                    batch = batch.set_column(at, wanted[at], in_us)
                elif pa.types.is_float32(column.type):  # as it was written: 0.7, and not 0.699999988079071
                    batch = batch.set_column(at, wanted[at], column.cast(pa.string()).cast(pa.float64()))
            rows = max(batch.num_rows * BLOCK // max(batch.nbytes, 1), 1)
            yield from (batch.slice(at, rows) for at in range(0, batch.num_rows, rows))
    except (pa.ArrowException, OSError) as error:
        raise Broken("the Parquet file is damaged") from error


def _batch(batch: Any, line: int) -> RecordBatch:
    result = RecordBatch([], [])
    try:
        result.records.extend(enumerate(_plain(batch), line + 1))
    except (ValueError, OverflowError) as error:  # bytes that are no UTF-8, dates that Python does not have
        if batch.num_rows == 1:
            return RecordBatch([], [Rejection(line + 1, Reason.MALFORMED, detail=type(error).__name__)])
        for n in range(batch.num_rows):
            one = _batch(batch.slice(n, 1), line + n)
            result.records.extend(one.records)
            result.rejected.extend(one.rejected)
    return result


def _plain(batch: Any) -> list[dict[str, Any]]:
    rows = batch.to_pylist(maps_as_pydicts="lossy")
    odd = [field.name for field in batch.schema if _ODD.search(str(field.type))]
    for row in rows if odd else ():
        row.update({name: plain(row[name]) for name in odd})
    return rows


JSON, CSV, PARQUET = ".json", ".csv", ".parquet"
FORMATS = (*LINES, JSON, CSV, PARQUET)
CELL = 64
"""Bytes of a cell besides its text."""
SMALL, MANY, BUNDLE = 1 << 18, 100, 1_000
"""Bytes of a small file; how many of them in a folder are made parts of so many files."""
AT_ONCE = (16, 128)
"""Small files that are fetched at once: at first, and later."""

_object = msgspec.json.Decoder(dict[str, Any]).decode


def records(files: Files, part: SourcePart, digest: Digest, paths: Sequence[str]) -> Iterator[RecordBatch]:
    """The file's rows. Of Parquet only the columns in which `paths` begin are read."""
    if part.files:
        return _of_files(files, part, digest, paths)
    name = part.name.removesuffix(".gz")
    if name.endswith(PARQUET):
        return parquet_records(files, part, digest, {*paths, *(str(steps(path)[0]) for path in paths)})
    if name.endswith(CSV):
        return _csv(files.chunks(part, digest))
    return map(_json, (elements if name.endswith(JSON) else blocks)(files.chunks(part, digest)))


def bundled(parts: Sequence[SourcePart]) -> list[SourcePart]:
    """Parts of BUNDLE files each in the place of the small ones, in folders that have MANY: some logs write a file for
    each call. A file that is added to a folder leaves the parts before it as they are."""
    folders, bundles = dict[str, list[SourcePart]](), list[SourcePart]()
    for part in parts:
        folders.setdefault(part.name.rpartition("/")[0] if part.size <= SMALL else part.name, []).append(part)
    for folder, some in folders.items():
        for first in range(0, len(some), BUNDLE) if len(some) >= MANY else ():
            own = tuple(some[first : first + BUNDLE])
            name, version = f"{folder}/files from {first + 1}".lstrip("/"), digest_json([each[:2] for each in own])[:16]
            bundles.append(SourcePart(name, version, sum(each.size for each in own), files=own))
        bundles += some if len(some) < MANY else ()
    return sorted(bundles)


def _of_files(files: Files, part: SourcePart, digest: Digest, paths: Sequence[str]) -> Iterator[RecordBatch]:
    first, size = 0, AT_ONCE[0]
    while some := part.files[first : first + size]:
        files.fetch(some)
        read = RecordBatch([], [])
        for place, file in enumerate(some, first + 1):
            for batch in records(files, file, digest, paths):
                read.records.extend((place, record) for _, record in batch.records)
                for each in batch.rejected:
                    read.rejected.append(replace(each, line=place, day=each.day or named_day(file.name)))
        yield read
        first, size = first + size, min(2 * size, AT_ONCE[1])


def first_records(files: Files, part: SourcePart, most: int) -> list[dict[str, Any]]:
    """A file's first rows, whole, from its beginning alone. A name of no known format is read as JSON lines."""
    name, batch = part.name.removesuffix(".gz"), None
    if name.endswith(PARQUET):
        with files.opened(part) as stream, suppress(Broken):
            batch = next((_batch(batch.slice(0, most), 0) for batch in _bounded(stream, part, None)), None)
    elif name.endswith((CSV, JSON)):
        batch = next(records(files, part, sha256(), ()), None)
    else:
        batch = next(map(_json, blocks(files.chunks(part, sha256()), CHUNK)), None)
    return [record for _, record in batch.records[:most]] if batch else []


def _json(block: LineBatch) -> RecordBatch:
    read = RecordBatch([], [])
    for line, text in block.lines():
        try:
            read.records.append((line, _object(text)))
        except (ValueError, RecursionError) as error:
            read.rejected.append(refusal(line, error))
    read.rejected.extend(block.rejected)
    return read


def _csv(chunks: Iterator[bytes]) -> Iterator[RecordBatch]:
    """The first line names the columns; an empty cell is none. Where a line cannot be read, cells lose their ends: the
    rest of the file is given up."""

    def texts() -> Iterator[str]:
        for block in blocks(chunks):
            yield from (f"{text.decode()}\n" for text in block.texts)
            if block.rejected:
                raise csv.Error(block.rejected[0].detail)

    csv.field_size_limit(MAX_LINE)
    rows = csv.DictReader(texts(), strict=True)
    read, held = RecordBatch([], []), 0
    try:
        for row in rows:
            if None in row or None in row.values():
                detail = "more or fewer cells than columns"
                read.rejected.append(Rejection(rows.line_num, Reason.MALFORMED, detail=detail))
            else:
                read.records.append((rows.line_num, {key: cell for key, cell in row.items() if cell}))
                held += CELL * len(row) + sum(map(len, row.values()))
            if held >= BLOCK:
                yield read
                read, held = RecordBatch([], []), 0
    except (csv.Error, UnicodeDecodeError) as error:
        detail = f"the rest is not read: {error}"
        read.rejected.append(Rejection(rows.line_num + 1, Reason.TRUNCATED_FILE, detail=detail))
    yield read
