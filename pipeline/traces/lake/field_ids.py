"""Iceberg's field ids of the governed table's columns, which workers write without asking the catalogue.

Owns the numbering: a table that was made by an earlier version and given LATER, and one made now, have the same ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pyarrow as pa

from pipeline.traces.rows import LATER


def numbered(schema: pa.Schema) -> pa.Schema:
    """`schema` with the field ids of the table: of the first version's columns as Iceberg numbers those of a new table,
    columns before what is inside them; then one for each of LATER."""
    first = first_version(schema)
    ids: dict[tuple[str, ...], int] = {}
    _number(list(first), (), ids, count(1))
    for path in LATER:
        if path[0] in schema.names:
            ids[path] = len(ids) + 1
    return pa.schema([_numbered_field(field, (), ids) for field in schema])


def first_version(schema: pa.Schema) -> pa.Schema:
    """`schema` without LATER: a new table is made with it and then given the rest, so that all tables number alike."""
    inside = {path for path in LATER if len(path) > 1}
    fields: list[pa.Field] = []
    for field in schema:
        if (field.name,) in LATER:
            continue
        if any(path[0] == field.name for path in inside):
            struct = field.type.value_type
            kept = [struct.field(i) for i in range(struct.num_fields)]
            kept = [each for each in kept if (field.name, each.name) not in inside]
            field = field.with_type(pa.list_(field.type.value_field.with_type(pa.struct(kept))))
        fields.append(field)
    return pa.schema(fields)


def _number(
    fields: list[pa.Field], above: tuple[str, ...], ids: dict[tuple[str, ...], int], numbers: Iterator[int]
) -> None:
    for field in fields:
        ids[(*above, field.name)] = next(numbers)
    for field in fields:
        path = (*above, field.name)
        if isinstance(field.type, pa.ListType):
            ids[(*path, "element")] = next(numbers)
            if isinstance(field.type.value_type, pa.StructType):
                _number(_fields(field.type.value_type), path, ids, numbers)
        elif isinstance(field.type, pa.StructType):
            _number(_fields(field.type), path, ids, numbers)


def _numbered_field(field: pa.Field, above: tuple[str, ...], ids: dict[tuple[str, ...], int]) -> pa.Field:
    path = (*above, field.name)
    kind = field.type
    if isinstance(kind, pa.ListType):
        element = kind.value_field.with_metadata({"PARQUET:field_id": str(ids[(*path, "element")])})
        if isinstance(kind.value_type, pa.StructType):
            element = element.with_type(_numbered_struct(kind.value_type, path, ids))
        kind = pa.list_(element)
    elif isinstance(kind, pa.StructType):
        kind = _numbered_struct(kind, path, ids)
    return field.with_metadata({"PARQUET:field_id": str(ids[path])}).with_type(kind)


def _numbered_struct(kind: pa.StructType, path: tuple[str, ...], ids: dict[tuple[str, ...], int]) -> pa.StructType:
    return pa.struct([_numbered_field(field, path, ids) for field in _fields(kind)])


def _fields(kind: pa.StructType) -> list[pa.Field]:
    return [kind.field(i) for i in range(kind.num_fields)]
