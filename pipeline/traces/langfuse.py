"""Langfuse's words: how an observation becomes a trace and a score becomes feedback.

Owns the meaning of the fields, in the snake_case of the blob-storage export. Refuses to open files: `langfuse_export`
and `langfuse_ui` do, and bring their rows to this one shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, cast

import msgspec

from pipeline.traces import chat
from pipeline.traces.records import UNKNOWN_DAY, FileRows, Reason, Rejection, Score, Trace

REFERENCE_KEY = "expected_answer"
"""Metadata key of the expected answer, where the application knows it."""
UP = frozenset({"true", "1", "up", "thumbs_up", "positive", "good", "yes", "correct"})
DOWN = frozenset({"false", "0", "down", "thumbs_down", "negative", "bad", "no", "incorrect"})


class Observation(msgspec.Struct):
    """A row of `observations_v2/`. Numbers may come as text: ClickHouse writes 64-bit integers so."""

    id: str
    trace_id: str
    type: str
    start_time: str
    updated_at: str | None = None
    user_id: str | None = None
    session_id: str | None = None
    provided_model_name: str | None = None
    level: str | None = None
    status_message: str | None = None
    input: Any = None
    output: Any = None
    metadata: Any = None
    usage_details: Any = None
    latency: float | str | None = None
    """Seconds."""


class ScoreRow(msgspec.Struct):
    """A row of `scores/`."""

    id: str
    trace_id: str | None = None
    observation_id: str | None = None
    name: str = ""
    value: float | str | bool | None = None
    string_value: str | None = None
    data_type: str = "NUMERIC"
    source: str = "API"
    updated_at: str | None = None


def add(rows: FileRows, line: int, decode: Callable[[], Observation | ScoreRow]) -> None:
    """Put one row of the source where it belongs in `rows`. It ends in exactly one place, whatever it holds."""
    trace_id, day = None, rows.named_day or UNKNOWN_DAY
    try:
        row = decode()
        trace_id = row.trace_id
        if isinstance(row, ScoreRow):
            if row.trace_id:  # scores of a session or a dataset run are not about a trace
                rows.scores.append(_score(row, row.trace_id))
            return
        day = utc(row.start_time).date().isoformat()
        if row.type == "GENERATION":
            rows.traces.append(_trace(row, rows.name, line))
            return
        reason = Reason.NOT_GENERATION
    except msgspec.ValidationError:
        reason = Reason.SCHEMA
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        reason = Reason.MALFORMED
    except Exception:  # the boundary of one row: whatever it holds, it must not stop the rows beside it
        reason = Reason.SCHEMA
    rows.rejected.append(Rejection(trace_id, reason, rows.name, line, day))


def utc(text: str) -> datetime:
    """A Langfuse timestamp; the export writes UTC without saying so."""
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def metadata_of(value: Any) -> dict[str, Any]:
    """Metadata as an object. The export turns each value into text, so JSON in it is read back."""
    found = chat.decoded(value) if isinstance(value, str) else value
    if not isinstance(found, Mapping):
        return {} if found in (None, "") else {"metadata": found}
    pairs = cast(Mapping[str, Any], found).items()
    return {str(key): chat.decoded(v) if isinstance(v, str) else v for key, v in pairs}


def _trace(row: Observation, file: str, line: int) -> Trace:
    asked, answered = chat.parse(row.input, "user"), chat.parse(row.output, "assistant")
    metadata = metadata_of(row.metadata)
    usage = cast(Mapping[str, Any], row.usage_details if isinstance(row.usage_details, Mapping) else {})
    moment = utc(row.start_time)
    finish = metadata.get("finish_reason", answered.finish_reason)
    reference = metadata.get(REFERENCE_KEY)
    return Trace(
        trace_id=row.trace_id,
        observation_id=row.id,
        timestamp=moment,
        day=moment.date().isoformat(),
        model=row.provided_model_name or "",
        user_id=row.user_id or None,
        session_id=row.session_id or None,
        messages=asked.messages,
        completion=chat.completion(answered),
        file=file,
        line=line,
        updated_at=utc(row.updated_at) if row.updated_at else None,
        input_tokens=_count(usage.get("input")),
        output_tokens=_count(usage.get("output")),
        latency_s=None if row.latency in (None, "") else float(row.latency),
        level=row.level or "DEFAULT",
        error=row.status_message or None,
        finish_reason=None if finish is None else str(finish),
        reference=None if reference is None else str(reference),
        metadata=metadata,
        has_payload=asked.has_payload or answered.has_payload,
    )


def _count(value: Any) -> int | None:
    return None if value in (None, "") else int(value)


def _score(row: ScoreRow, trace_id: str) -> Score:
    return Score(
        id=row.id,
        trace_id=trace_id,
        observation_id=row.observation_id or None,
        name=row.name,
        value=_unit(row),
        source=row.source,
        updated_at=utc(row.updated_at) if row.updated_at else None,
    )


def _unit(row: ScoreRow) -> float | None:
    """The score in [0, 1]. None where that needs a scale we were not given: 1 to 5 stars, an unknown category."""
    if row.data_type == "CATEGORICAL":
        word = (row.string_value or str(row.value)).strip().lower()
        return 1.0 if word in UP else 0.0 if word in DOWN else None
    try:
        number = float(row.value) if row.value is not None else -1.0
    except ValueError:
        number = {"true": 1.0, "false": 0.0}.get(str(row.value).lower(), -1.0)
    return number if 0.0 <= number <= 1.0 else None
