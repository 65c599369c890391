"""The type of a chat prompt in the tables of unpaired answers, and the way to and from it.

A call stays JSON in text: Arrow would merge the structs of different tools into one of all their keys.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

CHAT = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string()), ("tool_calls", pa.string())]))


def to_rows(prompt: str) -> list[dict[str, str]]:
    """Messages for a column of CHAT, from a prompt as the labels hold it: canonical JSON."""
    messages: list[dict[str, Any]] = json.loads(prompt)
    return [{name: _text(value) for name, value in message.items() if value is not None} for message in messages]


def to_prompt(rows: Sequence[Mapping[str, Any]]) -> str:
    """The prompt as the labels hold it, from the messages of a column."""
    messages = [{name: value for name, value in message.items() if value is not None} for message in rows]
    return json.dumps(messages, ensure_ascii=False)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
