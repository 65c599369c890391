"""The rows of a file of items as it is published: JSON lines, one JSON array, CSV with a header, or Parquet."""

import csv
import io
import json
from collections.abc import Iterator
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

MAX_LINE_BYTES = 1_000_000
BOM = b"\xef\xbb\xbf"


def rows(content: bytes, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each row with its place: `line 3`, or `row 3` where rows are no lines; both count from 1. The content says which
    format it is, and for CSV the ending of the file's name. A cell without a value is left out of its row.

    Raises ValueError for what is not in its format.
    """
    text = content.removeprefix(BOM)
    if content.startswith(b"PAR1"):
        return _numbered(_parquet(content))
    if name.endswith(".csv"):
        return _numbered(_csv(text))
    return _numbered(_array(text)) if text.lstrip().startswith(b"[") else _lines(text)


def _numbered(read: Iterator[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, row in enumerate(read, start=1):
        if not isinstance(row, dict):
            raise ValueError(f"row {number} is no JSON object. Write each item as one.")
        yield f"row {number}", cast(dict[str, Any], row)


def _parquet(content: bytes) -> Iterator[Any]:
    try:
        table = pq.read_table(pa.BufferReader(content))
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"it is no Parquet file ({error}). Fetch it again.") from error
    for row in table.to_pylist():
        yield {name: value for name, value in row.items() if value is not None}


def _csv(text: bytes) -> Iterator[Any]:
    try:
        read = csv.DictReader(io.StringIO(text.decode(), newline=""), strict=True)
        for row in read:
            if None in row:
                raise ValueError(f"the row that ends at line {read.line_num} has more cells than the header")
            yield {name: value for name, value in row.items() if value}
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"it is no CSV in UTF-8 ({error}). Save it as one.") from error


def _array(text: bytes) -> Iterator[Any]:
    try:
        yield from json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it begins with [ and is no JSON array ({error}). Write one array, or JSON lines.") from error


def _lines(text: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(text.split(b"\n"), start=1):
        if not line.strip():
            continue
        if len(line) > MAX_LINE_BYTES:
            raise ValueError(f"line {number} has {len(line):,} bytes, and at most {MAX_LINE_BYTES:,} are read")
        try:
            row = json.loads(line, parse_constant=_refuse_constant)
        except ValueError as error:
            raise ValueError(f"line {number} is no JSON ({error}). Write one object on each line.") from error
        if not isinstance(row, dict):
            raise ValueError(f"line {number} is no JSON object. Write one object on each line.")
        yield f"line {number}", cast(dict[str, Any], row)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")
