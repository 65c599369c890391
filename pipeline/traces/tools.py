"""Rows in which tools were called: no stage after this one can hold a call yet, so each leaves such rows out, counted.

Owns telling them. A turn that was a call, read as text alone, is an empty turn of the assistant: another prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TOOL_CALLS = "tool_calls"
"""Why such a row has no label."""
COLUMNS = ("messages", "tool_calls")
"""What tells it, of the governed table."""


def calls_tools(row: Mapping[str, Any]) -> bool:
    """Whether a row of the governed table holds a tool's call or its result, in the prompt or beside the completion."""
    turns = (message["role"] == "tool" or message.get("tool_calls") for message in row["messages"])
    return bool(row.get("tool_calls")) or any(turns)
