"""The type of a chat prompt in the tables of preference data. A call stays JSON text: Arrow would merge the structs
of different tools into one of all their keys."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from pipeline.core.conversation import FIELDS


def chat_of(*names: str) -> pa.DataType:
    return pa.list_(pa.struct([(name, pa.string()) for name in names]))


TURNS = chat_of(*FIELDS[:2])
"""Messages of role and content."""
CHAT = chat_of(*FIELDS[:3])
"""Messages that may hold calls."""
WHOLE_CHAT = chat_of(*FIELDS)
"""Messages with calls and their results."""


def table_of(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """The rows as a table; the type of `prompt` is WHOLE_CHAT where a message needs it, else as in `schema`."""
    held = schema.field("prompt").type.value_type
    names = {held.field(n).name for n in range(held.num_fields)}
    used = {name for row in rows for message in row["prompt"] for name, value in message.items() if value is not None}
    at = schema.get_field_index("prompt")
    fitting = schema if used <= names else schema.set(at, pa.field("prompt", WHOLE_CHAT))
    return pa.Table.from_pylist([dict(row) for row in rows], fitting)


def to_rows(prompt: str) -> list[dict[str, str]]:
    messages: list[dict[str, Any]] = json.loads(prompt)
    return [{name: _text(value) for name, value in message.items() if value is not None} for message in messages]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
