"""Rows of Arrow as plain records, and identifiers taken out of columns of any type.

Owns the way through lists, structs, maps and dictionaries. Refuses to decide whose a row is.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from pipeline.erasure.arrow_texts import is_text, text_arrays
from pipeline.erasure.identifiers import Identifiers
from pipeline.erasure.units import OWNERS


def rows_of(batch: Any) -> list[dict[str, Any]]:
    """The texts, lists, structs, times and owners of each row, binary ones as the UTF-8 that they mean to be."""
    names = [
        each.name
        for each in batch.schema
        if _tells(each.type) or (each.name in OWNERS and pa.types.is_integer(each.type))
    ]
    chosen = batch.select(names)
    for at, field in enumerate(chosen.schema):
        if pa.types.is_timestamp(field.type) and field.type.unit == "ns":
            chosen = chosen.set_column(
                at, field.name, chosen.column(at).cast(pa.timestamp("us", field.type.tz), safe=False)
            )
    table = pa.Table.from_batches([chosen]) if isinstance(chosen, pa.RecordBatch) else chosen
    return [_plain(row) for row in table.to_pylist(maps_as_pydicts="lossy")]


def redacted_rows(batch: pa.RecordBatch, identifiers: Identifiers) -> tuple[pa.RecordBatch, int]:
    """The batch without the identifiers, and in how many rows one stood."""
    if not any(_names(texts, identifiers) for column in batch.columns for texts in text_arrays(column)):
        return batch, 0
    written = redacted_batch(batch, identifiers)
    before, after = pa.Table.from_batches([batch]).to_pylist(), pa.Table.from_batches([written]).to_pylist()
    return written, sum(one != other for one, other in zip(before, after, strict=True))


def redacted_batch(batch: pa.RecordBatch, identifiers: Identifiers) -> pa.RecordBatch:
    """The batch without the identifiers in any text of it; types, rows and nulls stay."""
    columns = [redacted_array(column, identifiers) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def redacted_array(array: Any, identifiers: Identifiers) -> Any:
    kind = array.type
    if not any(_names(texts, identifiers) for texts in text_arrays(array)):
        return array
    if is_text(kind) or pa.types.is_dictionary(kind):
        texts = [None if v is None else _redacted(v, identifiers) for v in array.to_pylist()]
        return pa.array(texts, kind)
    if pa.types.is_struct(kind):
        fields = [redacted_array(array.field(n), identifiers) for n in range(kind.num_fields)]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=array.is_null())
    # Lists and maps are few and small: they go by way of Python.
    return pa.array([_redacted(value, identifiers) for value in array.to_pylist()], kind)


def _names(texts: Any, identifiers: Identifiers) -> bool:
    values = [value for value in texts.cast(pa.large_binary()).to_pylist() if value]
    return identifiers.in_bytes(b'"' + b'"\n"'.join(values) + b'"')


def _redacted(value: Any, identifiers: Identifiers) -> Any:
    if isinstance(value, str):
        return identifiers.redacted(value)
    if isinstance(value, bytes):
        try:
            return identifiers.redacted(value.decode()).encode()
        except UnicodeDecodeError:
            return identifiers.redacted(value.decode("latin-1")).encode("latin-1")
    if isinstance(value, dict):
        return {_redacted(key, identifiers): _redacted(inner, identifiers) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_redacted(inner, identifiers) for inner in value)
    return value


def _tells(kind: pa.DataType) -> bool:
    return pa.types.is_temporal(kind) or pa.types.is_nested(kind) or pa.types.is_dictionary(kind) or is_text(kind)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, dict):
        return {str(_plain(key)): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value
