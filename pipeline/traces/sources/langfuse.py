"""Langfuse's words: how an observation becomes a trace, and a score feedback, in the snake_case of the blob-storage
export. The usual rows of an export are decoded by type, to the same values."""

import math
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache, lru_cache
from typing import Annotated, Any, Literal, NamedTuple, cast

import msgspec

from pipeline.traces.records import Reason
from pipeline.traces.rows import Rejection, Rows, Score, Trace
from pipeline.traces.sources import chat
from pipeline.traces.sources.fields import (
    MOST,
    count,
    day_of,
    latency_s,
    metadata_text,
    put,
    said,
    utc,
    utc_or_none,
)
from pipeline.traces.sources.lines import refusal
from pipeline.traces.sources.parts import normal_tools
from pipeline.traces.sources.shapes import ODD, decoded, object_of

MODEL_CALL = "GENERATION"


class Observation(msgspec.Struct, kw_only=True):
    """A row of `observations_v2/`. Numbers may come as text: ClickHouse writes its integers so."""

    id: str
    trace_id: str
    type: str
    start_time: Any
    end_time: Any = None
    updated_at: Any = None
    user_id: str | None = None
    session_id: str | None = None
    metadata: Any = None
    version: Any = None
    release: Any = None
    environment: Any = None
    tags: Any = None
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
    usage_details: Any = None
    latency: Any = None
    """Seconds in some exports and milliseconds in others: what counts is `end_time` less `start_time`."""


UtcTime = Annotated[datetime, msgspec.Meta(tz=False)]
Count = Annotated[int, msgspec.Meta(ge=0, lt=MOST)] | None


class PlainUsage(msgspec.Struct, gc=False, frozen=True):
    input: Count = None
    output: Count = None


class PlainRow(Observation, kw_only=True, gc=False):
    """An observation whose fields are of their usual types."""

    start_time: UtcTime
    end_time: UtcTime | None = None
    updated_at: UtcTime | None = None
    version: str | None = None
    release: str | None = None
    environment: str | None = None
    tags: tuple[str, ...] | str | None = None
    name: str | None = None
    input: str | None = None
    output: str | None = None
    metadata: msgspec.Raw = msgspec.Raw(b"{}")
    usage_details: PlainUsage = PlainUsage()
    latency: float | None = None


class ScoreRow(msgspec.Struct):
    id: str
    trace_id: str | None = None
    observation_id: str | None = None
    name: str | None = None
    value: float | str | bool | None = None
    string_value: str | None = None
    data_type: str | None = None
    source: str | None = None
    updated_at: Any = None


KINDS = {"calls": Observation, "scores": ScoreRow}


@cache
def _api_names(kind: type[msgspec.Struct]) -> dict[str, str]:
    names = {name: re.sub("_(.)", lambda match: match[1].upper(), name) for name in kind.__struct_fields__}
    return {**names, "provided_model_name": "model"} if kind is Observation else names


def row_of(given: Mapping[str, Any], kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The fields of `kind` in a row of Langfuse's API or user interface: camelCase, and `model`."""
    return {name: given[key] for name, key in _api_names(kind).items() if key in given}


def add(rows: Rows, line: int, decode: Callable[[], Observation | ScoreRow]) -> None:
    """Put one row of the source where it belongs in `rows`. It ends in exactly one place, whatever it holds."""
    row: Observation | ScoreRow | None = None
    try:
        row = decode()
        if isinstance(row, Observation):
            put(rows, trace_of(row, line))
        elif (score := _score(row)) is not None:
            rows.scores.append(score)
    except Exception as error:  # the boundary of one row: it must not stop the others
        trace_id = None if row is None else row.trace_id
        day = day_of(row.start_time) if isinstance(row, Observation) else None
        rows.rejected.append(refusal(line, error, trace_id, day))


ROLES = ("system", "user", "assistant", "tool")
PlainMessage = dict[Literal["role", "content"], str]
_plain_row = msgspec.json.Decoder(PlainRow).decode
_plain_messages = msgspec.json.Decoder(list[PlainMessage]).decode
_plain_message = msgspec.json.Decoder(PlainMessage).decode


def plain_trace(line: int, text: bytes) -> Trace | None:
    """The trace of a usual line: a model call of plain texts or messages of text, with an object as metadata and times
    in UTC. None for any other, which `add` reads."""
    try:
        row = _plain_row(text)
        if row.type != MODEL_CALL or not row.input or not row.output or row.tool_definitions or row.tool_calls:
            return None
        messages: list[Any] = [{"role": "user", "content": row.input}]
        answer: Any = {"role": "assistant", "content": row.output}
        if row.input[0] == "[":
            messages = _plain_messages(row.input)
        if row.output[0] == "{":
            answer = _plain_message(row.output)
        metadata = str(row.metadata, "utf-8")
    except (ValueError, RecursionError):
        return None
    for each in (answer, *messages):
        if [*each] != ["role", "content"] or each["role"] not in ROLES or ODD(each["content"]):
            return None
    if answer["role"] != "assistant" or metadata[0] != "{":
        return None
    return Trace(
        trace_id=row.trace_id,
        observation_id=row.id,
        timestamp=row.start_time,
        model=row.provided_model_name or "",
        user_id=row.user_id or None,
        session_id=row.session_id or None,
        messages=messages,
        completion=answer["content"],
        line=line,
        updated_at=row.updated_at,
        input_tokens=row.usage_details.input,
        output_tokens=row.usage_details.output,
        latency_s=row.latency if row.end_time is None else (row.end_time - row.start_time).total_seconds(),
        level=row.level or "DEFAULT",
        error=row.status_message or None,
        metadata=marked(metadata, _known_marks(row.version, row.release, row.environment, row.tags)),
        name=row.name,
    )


class AnsweredBy(NamedTuple):
    """What an observation says of who answered, as the beginning of a JSON object, and its keys."""

    text: str
    keys: tuple[str, ...]


def marks(version: Any, release: Any, environment: Any, tags: Any) -> AnsweredBy:
    """Of the texts and lists among them."""
    values = {"version": version, "release": release, "environment": environment, "tags": decoded(tags)}
    given = {key: value for key, value in values.items() if value and isinstance(value, str | list | tuple)}
    return AnsweredBy(msgspec.json.encode(given).decode()[:-1], tuple(f'"{key}"' for key in given))


_known_marks = lru_cache(1024)(marks)


def marked(metadata: str, given: AnsweredBy) -> str:
    """Metadata with what its observation says; an own key of that name stays as it is."""
    text, keys = given
    for key in keys:
        if key in metadata:
            return msgspec.json.encode(msgspec.json.decode(text + "}") | msgspec.json.decode(metadata)).decode()
    if not keys:
        return metadata
    return f"{text},{metadata[1:]}" if '"' in metadata else text + "}"


def trace_of(row: Observation, line: int) -> Trace | Rejection:
    """The model call that an observation is. Raises msgspec.ValidationError or RecursionError."""
    moment = utc(row.start_time)
    if row.type != MODEL_CALL:
        return Rejection(line, Reason.NOT_GENERATION, row.trace_id, moment.date().isoformat())
    asked, answered = chat.parse(row.input, "user"), chat.of_output(row.output)
    asked.tools = asked.tools or normal_tools(_values(row.tool_definitions))
    if row.tool_calls and not (chat.tool_calls(answered) or answered.unreadable):
        turn = {"role": "assistant", "content": chat.completion(answered), "tool_calls": _values(row.tool_calls)}
        answered.messages = [*answered.messages[:-1], *chat.parse(turn, "assistant").messages]
    usage = object_of(decoded(row.usage_details))
    trace = Trace(
        trace_id=row.trace_id,
        observation_id=row.id,
        timestamp=moment,
        model=row.provided_model_name or "",
        user_id=row.user_id or None,
        session_id=row.session_id or None,
        messages=[],
        completion="",
        line=line,
        updated_at=utc_or_none(row.updated_at),
        input_tokens=count(usage.get("input")),
        output_tokens=count(usage.get("output")),
        latency_s=latency_s(row.start_time, row.end_time, row.latency),
        level=row.level or "DEFAULT",
        error=row.status_message or None,
        metadata=marked(metadata_text(row.metadata), marks(row.version, row.release, row.environment, row.tags)),
        name=row.name if isinstance(row.name, str) else None,
    )
    return said(trace, asked, answered, failed=row.level == "ERROR")


def _score(row: ScoreRow) -> Score | None:
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


def _values(column: Any) -> list[Any]:
    held = decoded(column)
    values = list(cast(Mapping[str, Any], held).values()) if isinstance(held, Mapping) else held or []
    return [decoded(value) for value in values]
