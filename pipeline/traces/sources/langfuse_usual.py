"""The usual row of a Langfuse export, read fast: a plain question or chat messages, a plain answer, times in UTC.

Owns speed alone. What it reads, it reads as `langfuse.trace_of` does (a test draws rows for both); of what it does not
know it says None, and `langfuse` reads that.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec

from pipeline.traces.records import Reason
from pipeline.traces.rows import Message, Rejection, Trace
from pipeline.traces.sources.langfuse import MODEL_CALL, MOST
from pipeline.traces.sources.shapes import ODD

ROLES = frozenset({"system", "user", "assistant", "tool"})
Count = Annotated[int, msgspec.Meta(ge=0, lt=MOST)] | None


class UsageDetails(msgspec.Struct, gc=False):
    input: Count = None
    output: Count = None


class UsualRow(msgspec.Struct, gc=False):
    id: str
    trace_id: str
    type: str
    start_time: datetime
    end_time: datetime | None = None
    updated_at: datetime | None = None
    user_id: str | None = None
    session_id: str | None = None
    provided_model_name: str | None = None
    level: str | None = None
    status_message: str | None = None
    input: str | None = None
    output: str | None = None
    metadata: msgspec.Raw = msgspec.Raw(b"{}")
    usage_details: UsageDetails | None = None
    latency: float | None = None


_row = msgspec.json.Decoder(UsualRow).decode
_messages = msgspec.json.Decoder(list[Message]).decode
_message = msgspec.json.Decoder(Message).decode
_NO_USAGE = UsageDetails()


def usual_call(text: bytes, line: int) -> Trace | Rejection | None:
    """A row of observations; None when it is not the usual one. Raises ValueError or RecursionError likewise."""
    row = _row(text)
    moment, updated = row.start_time, row.updated_at
    end = row.end_time
    if (
        moment.tzinfo is not None
        or (updated is not None and updated.tzinfo is not None)
        or (end is not None and end.tzinfo is not None)
    ):
        return None
    if row.type != MODEL_CALL:
        return Rejection(line, Reason.NOT_GENERATION, row.trace_id, moment.date().isoformat())
    asked, answered, metadata = row.input, row.output, str(row.metadata, "utf-8")
    if not asked or not answered or metadata[0] != "{":
        return None
    if asked[0] == "[":
        messages = _messages(asked)
        for message in messages:
            if len(message) != 2 or message.get("role") not in ROLES or ODD(message.get("content", "[")):
                return None
    elif ODD(asked):
        return None
    else:
        messages = [{"role": "user", "content": asked}]
    if answered[0] == "{":
        output_message = _message(answered)
        if (
            len(output_message) != 2
            or output_message.get("role") != "assistant"
            or ODD(output_message.get("content", "["))
        ):
            return None
        answered = output_message["content"]
    elif ODD(answered):
        return None
    usage = row.usage_details or _NO_USAGE
    return Trace(
        row.trace_id,
        row.id,
        moment,
        row.provided_model_name or "",
        row.user_id or None,
        row.session_id or None,
        messages,
        answered,
        line,
        updated,
        usage.input,
        usage.output,
        row.latency if end is None else (end - moment).total_seconds(),
        row.level or "DEFAULT",
        row.status_message or None,
        None,
        metadata,
    )
