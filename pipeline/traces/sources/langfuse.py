"""Langfuse's words: how an observation becomes a trace, a score feedback, and a trace's own row its attributes.

Owns the meaning of the fields, in the snake_case of the blob-storage export. Refuses to open files: `langfuse_export`
and `langfuse_ui` do, and bring their rows to this one shape.

`trace_of` reads every row; `langfuse_plain` reads the usual ones of an export faster, to the same values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from pipeline.traces.records import Reason
from pipeline.traces.rows import Attributes, Rejection, Rows, Score, Trace
from pipeline.traces.sources import chat, choices, openinference
from pipeline.traces.sources.calls import normal_tools
from pipeline.traces.sources.lines import refusal
from pipeline.traces.sources.moments import day_of, utc, utc_or_none
from pipeline.traces.sources.shapes import decoded

MODEL_CALL = "GENERATION"
MOST = 2**53
"""A larger count is none: it would not survive a JSON reader."""


class Observation(msgspec.Struct):
    """A row of `observations_v2/` or `observations/`. Numbers may come as text: ClickHouse writes its integers so."""

    id: str
    trace_id: str
    type: str
    start_time: Any
    end_time: Any = None
    updated_at: Any = None
    user_id: str | None = None
    session_id: str | None = None
    name: Any = None
    provided_model_name: str | None = None
    level: str | None = None
    status_message: str | None = None
    input: Any = None
    output: Any = None
    tool_definitions: Any = None
    """Tools that the request offered, where the input holds messages alone: by name, or in a list."""
    tool_calls: Any = None
    """Calls of tools that the answer holds, where the output does not."""
    metadata: Any = None
    usage_details: Any = None
    version: Any = None
    release: Any = None
    environment: Any = None
    tags: Any = None
    latency: Any = None
    """Seconds in some exports and milliseconds in others: what counts is `end_time` less `start_time`."""


class TraceRow(msgspec.Struct):
    """A row of `traces/`."""

    id: str
    user_id: str | None = None
    session_id: str | None = None
    metadata: Any = None
    version: Any = None
    release: Any = None
    environment: Any = None
    tags: Any = None
    updated_at: Any = None


class ScoreRow(msgspec.Struct):
    """A row of `scores/`."""

    id: str
    trace_id: str | None = None
    observation_id: str | None = None
    name: str | None = None
    value: float | str | bool | None = None
    string_value: str | None = None
    data_type: str | None = None
    source: str | None = None
    updated_at: Any = None


def add(rows: Rows, line: int, decode: Callable[[], Observation | ScoreRow | TraceRow]) -> None:
    """Put one row of the source where it belongs in `rows`. It ends in exactly one place, whatever it holds."""
    row: Observation | ScoreRow | TraceRow | None = None
    try:
        row = decode()
        if isinstance(row, Observation):
            put(rows, trace_of(row, line))
        elif isinstance(row, TraceRow):
            rows.attributes.append(attributes_of(row))
        elif (score := score_of(row)) is not None:
            rows.scores.append(score)
    except Exception as error:  # the boundary of one row: whatever it holds, it must not stop the rows beside it
        trace_id = None if row is None else row.id if isinstance(row, TraceRow) else row.trace_id
        day = day_of(row.start_time) if isinstance(row, Observation) else None
        rows.rejected.append(refusal(line, error, trace_id, day))


def put(rows: Rows, row: Trace | Rejection) -> None:
    assert isinstance(rows.traces, list), "rows that are being read"
    if isinstance(row, Trace):
        rows.traces.append(row)
    else:
        rows.rejected.append(row)


def trace_of(row: Observation, line: int) -> Trace | Rejection:
    """The model call that an observation is, whatever shape its text has.

    Raises msgspec.ValidationError for values that cannot be read; RecursionError for text nested too deep.
    """
    moment = utc(row.start_time)
    if row.type != MODEL_CALL:
        return Rejection(line, Reason.NOT_GENERATION, row.trace_id, moment.date().isoformat())
    asked, answered = chat.parse(row.input, "user"), choices.of_output(row.output)
    asked.tools = asked.tools or normal_tools(_values(row.tool_definitions))
    if not (answered.messages or answered.unreadable or answered.failed or row.tool_calls):
        answered = openinference.answered(openinference.in_metadata(row.metadata))
    if row.tool_calls and not (chat.tool_calls(answered) or answered.unreadable):
        said = {"role": "assistant", "content": chat.completion(answered), "tool_calls": _values(row.tool_calls)}
        answered.messages = [*answered.messages[:-1], *chat.parse(said, "assistant").messages]
    failed = answered.failed or row.level == "ERROR"
    strange = None if failed else asked.unreadable or answered.unreadable
    if not (asked.messages or answered.messages or failed or strange):
        return Rejection(line, Reason.NO_CONTENT, row.trace_id, moment.date().isoformat())
    usage = _object(row.usage_details)
    return Trace(
        trace_id=row.trace_id,
        observation_id=row.id,
        timestamp=moment,
        model=row.provided_model_name or "",
        user_id=row.user_id or None,
        session_id=row.session_id or None,
        messages=chat.prompt(asked, answered),
        completion=chat.completion(answered),
        tool_calls=chat.tool_calls(answered),
        tools=chat.tools(asked),
        line=line,
        updated_at=utc_or_none(row.updated_at),
        input_tokens=count(usage.get("input")),
        output_tokens=count(usage.get("output")),
        latency_s=latency_s(row.start_time, row.end_time, row.latency),
        level="ERROR" if failed else row.level or "DEFAULT",
        error=row.status_message or None,
        finish_reason=answered.finish_reason,
        metadata=marked(metadata_text(row.metadata), **marks_of(row)),
        unreadable=strange,
        name=row.name if isinstance(row.name, str) else None,
        has_payload=asked.has_payload or answered.has_payload,
    )


def marks_of(row: Any) -> dict[str, Any]:
    """What a row says beside its metadata of who answered."""
    return {"version": row.version, "release": row.release, "environment": row.environment, "tags": row.tags}


def attributes_of(row: TraceRow) -> Attributes:
    marks = {"trace_version": row.version, "release": row.release, "tags": row.tags}
    metadata = marked(metadata_text(row.metadata), environment=row.environment, **marks)
    return Attributes(row.id, row.user_id or None, row.session_id or None, metadata, utc_or_none(row.updated_at))


def score_of(row: ScoreRow) -> Score | None:
    """None for a score of a session or a dataset run: it is not about a trace."""
    if not row.trace_id:
        return None
    value, word = row.value, row.string_value
    kind = row.data_type or ("CATEGORICAL" if word or isinstance(value, str) else "NUMERIC")
    if kind == "CATEGORICAL" and word is None and value is not None:
        word = str(value)
    return Score(
        id=row.id,
        trace_id=row.trace_id,
        observation_id=row.observation_id or None,
        name=row.name or "",
        value=_number(value),
        source=row.source or "API",
        updated_at=utc_or_none(row.updated_at),
        kind=kind,
        word=word,
    )


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return {"true": 1.0, "false": 0.0}.get(str(value).lower())
    return number if math.isfinite(number) else None


def metadata_of(value: Any) -> dict[str, Any]:
    """Metadata as an object. The export turns each value into text, so JSON in it is read back."""
    parsed = decoded(value) if isinstance(value, str) else value
    if not isinstance(parsed, Mapping):
        return {} if parsed in (None, "") else {"metadata": parsed}
    pairs = cast(Mapping[str, Any], parsed).items()
    return {str(key): decoded(v) if isinstance(v, str) else v for key, v in pairs}


def metadata_text(value: Any) -> str:
    """Metadata as the JSON text of an object; an object stays as it was."""
    if isinstance(value, str) and value.startswith("{") and isinstance(decoded(value), dict):
        return value
    return msgspec.json.encode(value if isinstance(value, Mapping) else metadata_of(value)).decode()


def marked(metadata: str, **marks: Any) -> str:
    """Metadata with what the source says beside it of who answered; an own key of that name stays as it is.

    Only texts and lists are taken: an empty or odd value says nothing.
    """
    given = {key: decoded(value) if key == "tags" and isinstance(value, str) else value for key, value in marks.items()}
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


def _values(column: Any) -> list[Any]:
    """A column of JSON texts, in a list or by name."""
    held = decoded(column) if isinstance(column, str) else column
    values = list(cast(Mapping[str, Any], held).values()) if isinstance(held, Mapping) else held or []
    return [decoded(value) if isinstance(value, str) else value for value in values]


def _object(value: Any) -> Mapping[str, Any]:
    parsed = decoded(value) if isinstance(value, str) else value
    return cast(Mapping[str, Any], parsed) if isinstance(parsed, Mapping) else {}
