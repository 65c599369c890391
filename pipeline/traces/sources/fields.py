"""The fields of a row, whatever its source: what was said, counts, latencies, metadata. A value that cannot be read
raises msgspec.ValidationError."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from pipeline.traces.records import Reason
from pipeline.traces.rows import Rejection, Rows, Trace
from pipeline.traces.sources import chat
from pipeline.traces.sources.moments import utc, utc_or_none
from pipeline.traces.sources.shapes import decoded

MOST = 2**53
"""A larger count is none: it would not survive a JSON reader."""


def put(rows: Rows, row: Trace | Rejection) -> None:
    assert isinstance(rows.traces, list), "rows that are being read"
    if isinstance(row, Trace):
        rows.traces.append(row)
    else:
        rows.rejected.append(row)


def said(trace: Trace, asked: chat.Chat, answered: chat.Chat, failed: bool = False) -> Trace | Rejection:
    """The trace with its input and output, or the rejection of one that has neither. A failed one has no shape to be
    known."""
    failed = failed or answered.failed
    unreadable = None if failed else trace.unreadable or asked.unreadable or answered.unreadable
    if not (asked.messages or answered.messages or failed or unreadable):
        return Rejection(trace.line, Reason.NO_CONTENT, trace.trace_id, trace.timestamp.date().isoformat())
    trace.messages, trace.completion = chat.prompt(asked, answered), chat.completion(answered)
    trace.tool_calls, trace.tools = chat.tool_calls(answered), trace.tools or chat.tools(asked)
    trace.level = "ERROR" if failed else trace.level
    trace.finish_reason = answered.finish_reason or trace.finish_reason
    trace.unreadable = unreadable
    trace.has_payload = asked.has_payload or answered.has_payload
    return trace


def metadata_of(value: Any) -> dict[str, Any]:
    """Metadata as an object. The export turns each value into text, so JSON in it is read back."""
    parsed = decoded(value)
    if not isinstance(parsed, Mapping):
        return {} if parsed in (None, "") else {"metadata": parsed}
    return {str(key): decoded(each) for key, each in cast(Mapping[str, Any], parsed).items()}


def metadata_text(value: Any) -> str:
    """Metadata as the JSON text of an object; an object stays as it was."""
    if isinstance(value, str) and value.startswith("{") and isinstance(decoded(value), dict):
        return value
    return msgspec.json.encode(value if isinstance(value, Mapping) else metadata_of(value)).decode()


def marks_of(row: Any) -> dict[str, Any]:
    return {"version": row.version, "release": row.release, "environment": row.environment, "tags": row.tags}


def marked(metadata: str, **marks: Any) -> str:
    """Metadata with what the source says beside it of who answered; an own key of that name stays as it is.

    Only texts and lists are taken: an empty or odd value says nothing.
    """
    given = {key: decoded(value) if key == "tags" else value for key, value in marks.items()}
    given = {key: value for key, value in given.items() if value and isinstance(value, str | list)}
    if not given:
        return metadata
    if metadata[1:].lstrip() == "}" or any(f'"{key}"' in metadata for key in given):
        return msgspec.json.encode({**given, **msgspec.json.decode(metadata)}).decode()
    return f"{msgspec.json.encode(given).decode()[:-1]},{metadata[1:]}"


def count(value: Any) -> int | None:
    """Tokens; some instrumentations write them as 7.0. Raises msgspec.ValidationError for what is no count."""
    if value is None or value == "":
        return None
    try:
        number = int(value.removesuffix(".0") if isinstance(value, str) else value)
    except (ValueError, TypeError, OverflowError) as error:
        raise msgspec.ValidationError("a token count is no number") from error
    if not 0 <= number < MOST:
        raise msgspec.ValidationError("a token count is out of range")
    return number


def seconds(value: Any) -> float | None:
    """A latency. Raises msgspec.ValidationError for what is none."""
    if value is None or value == "":
        return None
    try:
        number = float(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise msgspec.ValidationError("a latency is no number") from error
    if not math.isfinite(number):
        raise msgspec.ValidationError("a latency is not finite")
    return number


def latency_s(start: Any, end: Any, latency: Any = None) -> float | None:
    """End less start where both are there, else what the source says, in seconds."""
    stated, ended = seconds(latency), utc_or_none(end)
    return stated if ended is None or not start else (ended - utc(start)).total_seconds()
