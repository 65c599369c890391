"""Rows of files as plain records, by a file's format: JSON lines, JSON, CSV or Parquet."""

import csv
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any

import msgspec

from pipeline.traces.records import Reason
from pipeline.traces.rows import Rejection
from pipeline.traces.sources import parquet
from pipeline.traces.sources.files import CHUNK, LINES, Files
from pipeline.traces.sources.lines import LineBatch, blocks, elements, refusal
from pipeline.traces.sources.parquet import RecordBatch
from pipeline.traces.sources.protocol import BLOCK, MAX_LINE, Digest, SourcePart
from pipeline.traces.sources.shapes import steps

JSON, CSV, PARQUET = ".json", ".csv", ".parquet"
FORMATS = (*LINES, JSON, CSV, PARQUET)
CELL = 64
"""Bytes of a cell besides its text."""

_object = msgspec.json.Decoder(dict[str, Any]).decode


def records(files: Files, part: SourcePart, digest: Digest, paths: Sequence[str]) -> Iterator[RecordBatch]:
    """The file's rows. Of Parquet only the columns in which `paths` begin are read."""
    name = part.name.removesuffix(".gz")
    if name.endswith(PARQUET):
        return parquet.records(files, part, digest, {*paths, *(str(steps(path)[0]) for path in paths)})
    if name.endswith(CSV):
        return _csv(files.chunks(part, digest))
    return map(_json, (elements if name.endswith(JSON) else blocks)(files.chunks(part, digest)))


def first_records(files: Files, part: SourcePart, most: int) -> list[dict[str, Any]]:
    """A file's first rows, whole, from its beginning alone. A name of no known format is read as JSON lines."""
    name = part.name.removesuffix(".gz")
    if name.endswith(PARQUET):
        with files.opened(part) as stream:
            batch = parquet.first_batch(stream, part, most)
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
