"""Fields of a row, whatever its source: what was said, counts, latencies, metadata, and times (ISO, or epochs in s to
ns). A value that cannot be read raises msgspec.ValidationError."""

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, cast

import msgspec

from pipeline.traces.records import Reason
from pipeline.traces.rows import Rejection, Rows, Trace
from pipeline.traces.sources import chat
from pipeline.traces.sources.shapes import decoded

EPOCH = datetime(1970, 1, 1)
UNITS = ((10**11, 1), (10**14, 10**3), (10**17, 10**6), (10**20, 10**9))
"""An epoch below the first number is in units of which the second is one second: 10^11 s is the year 5138."""
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?")
_DAY = re.compile(r"\d{8}")
MOST = 2**53
"""A larger count is none: it would not survive a JSON reader."""


def put(rows: Rows, row: Trace | Rejection) -> None:
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


def utc(value: Any) -> datetime:
    """The time that is meant, in UTC and without a zone. Raises msgspec.ValidationError without the value in it."""
    try:
        moment = _read(value)
        return moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError, TypeError) as error:
        raise msgspec.ValidationError("a timestamp is in no format that can be read") from error


def utc_or_none(value: Any) -> datetime | None:
    """None for null and empty text: the source does not say."""
    return None if value is None or value == "" else utc(value)


def day_of(value: Any) -> str | None:
    """YYYY-MM-DD in UTC, or None where the time cannot be read."""
    try:
        return utc(value).date().isoformat()
    except msgspec.ValidationError:
        return None


def _read(value: Any) -> datetime:
    if isinstance(value, datetime):
        return value
    if isinstance(value, (int, float, Decimal)) and not isinstance(value, bool):
        return _of_epoch(Decimal(str(value)))
    if not isinstance(value, str):
        raise TypeError
    with suppress(msgspec.ValidationError):
        return msgspec.convert(value, datetime)
    text = value.strip()
    if _NUMBER.fullmatch(text) and not _DAY.fullmatch(text):
        return _of_epoch(Decimal(text))
    return datetime.fromisoformat(text.removesuffix(" UTC"))


def _of_epoch(number: Decimal) -> datetime:
    if not number.is_finite():
        raise ValueError
    size = abs(number)
    for limit, per_second in UNITS:
        if size < limit:
            return EPOCH + timedelta(microseconds=int(number * 10**6 / per_second))
    raise ValueError
