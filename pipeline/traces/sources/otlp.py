"""OTLP after the published protocol: an export request's spans and log records, their attributes as plain values; and
results of evaluations (`gen_ai.evaluation.result`), records or events of a span, as scores of a trace."""

import hashlib
import math
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple

import msgspec

from pipeline.traces.rows import Score
from pipeline.traces.sources.fields import EPOCH
from pipeline.traces.sources.shapes import list_of, object_of

CONTENT = "gen_ai.event.content"
ERROR = (2, "2", "STATUS_CODE_ERROR")
RESULT = "gen_ai.evaluation.result"
NAME, VALUE = "gen_ai.evaluation.name", "gen_ai.evaluation.score.value"
LABEL, EXPLANATION = "gen_ai.evaluation.score.label", "gen_ai.evaluation.explanation"
SOURCE, ID = "feedback.source", "feedback.id"
"""Who scored, `user` or `EVAL`, and the score's own id: of two with one id the newer counts."""


class Resource(msgspec.Struct):
    attributes: list[Any] = []


class ScopeGroup(msgspec.Struct, rename="camel"):
    spans: list[Any] = []
    log_records: list[Any] = []


class ResourceGroup(msgspec.Struct, rename="camel"):
    resource: Resource | None = None
    scope_spans: list[ScopeGroup] = []
    scope_logs: list[ScopeGroup] = []


class ExportRequest(msgspec.Struct, rename="camel"):
    resource_spans: list[ResourceGroup] | None = None
    resource_logs: list[ResourceGroup] | None = None
    batches: list[ResourceGroup] | None = None
    """The spans of a trace by Grafana Tempo's API; its version 2 has a request under `trace`."""
    trace: "ExportRequest | None" = None


class SpanStatus(msgspec.Struct):
    code: int | str = 0
    message: str = ""


class SpanEvent(msgspec.Struct, rename="camel"):
    name: str = ""
    attributes: list[Any] = []
    dropped_attributes_count: int = 0
    time_unix_nano: int | str = 0


class Span(msgspec.Struct, rename="camel"):
    trace_id: str
    span_id: str
    start_time_unix_nano: int | str
    parent_span_id: str = ""
    end_time_unix_nano: int | str = 0
    attributes: list[Any] = []
    events: list[SpanEvent] = []
    status: SpanStatus | None = None
    dropped_attributes_count: int = 0
    dropped_events_count: int = 0
    name: str = ""

    @property
    def failed(self) -> bool:
        return self.status is not None and self.status.code in ERROR

    @property
    def dropped(self) -> int:
        """Attributes and events that the SDK left out because there were too many."""
        of_events = sum(event.dropped_attributes_count for event in self.events)
        return self.dropped_attributes_count + self.dropped_events_count + of_events


class LogRecord(msgspec.Struct, rename="camel"):
    """A record of a log. An event's name is a field of its own since OTLP 1.5, and was an attribute before."""

    trace_id: str = ""
    span_id: str = ""
    time_unix_nano: int | str = 0
    observed_time_unix_nano: int | str = 0
    event_name: str = ""
    attributes: list[Any] = []
    dropped_attributes_count: int = 0
    body: Any = None


class Received(NamedTuple):
    record: Any
    """As it was sent: `msgspec.convert(record, Span)` may refuse it, and no other."""
    resource: dict[str, Any]
    is_log: bool = False


_decode = msgspec.json.Decoder(ExportRequest).decode
_decode_group = msgspec.json.Decoder(ResourceGroup).decode


def decode(text: bytes) -> ExportRequest:
    """An export request; also one group of it, as Java's logging exporter writes a line, and a trace of Tempo's API."""
    request = _decode(text)
    if request.resource_spans is not None or request.resource_logs is not None:
        return request
    if request.batches is not None or request.trace is not None:
        return request.trace or ExportRequest(resource_spans=request.batches)
    group = _decode_group(text)
    if not group.scope_spans and not group.scope_logs:
        raise msgspec.ValidationError("Object missing required field `resourceSpans` or `resourceLogs`")
    return ExportRequest([group], [group])


def records(request: ExportRequest) -> Iterator[Received]:
    for groups, is_log in ((request.resource_spans, False), (request.resource_logs, True)):
        for group in groups or []:
            resource = attributes(group.resource.attributes) if group.resource else {}
            for scope in group.scope_logs if is_log else group.scope_spans:
                for record in scope.log_records if is_log else scope.spans:
                    yield Received(record, resource, is_log)


def nanoseconds(value: int | str) -> int:
    """64-bit integers are text in JSON. Raises msgspec.ValidationError."""
    try:
        return int(value)
    except ValueError as error:
        raise msgspec.ValidationError("a time is no number of nanoseconds") from error


def attributes(pairs: list[Any]) -> dict[str, Any]:
    """`[{key, value}]` as an object of plain values."""
    key_values = [msgspec.convert(pair, dict[str, Any]) for pair in pairs]
    return {str(pair.get("key")): _plain(pair.get("value")) for pair in key_values}


def pairs_of(body: Any) -> list[Any]:
    """The body of a log record as attributes: its own fields, or its text as the content of an event."""
    value = object_of(body)
    if isinstance(value.get("kvlistValue"), dict):
        return _values(value["kvlistValue"])
    return [{"key": CONTENT, "value": value}] if value.get("stringValue") or value.get("arrayValue") else []


def _plain(value: Any) -> Any:
    for kind, inner in object_of(value).items():
        if kind == "intValue":
            return int(inner)
        if kind == "arrayValue":
            return [_plain(item) for item in _values(inner)]
        if kind == "kvlistValue":
            return attributes(_values(inner))
        return inner
    return None


def _values(value: Any) -> list[Any]:
    return list_of(object_of(value).get("values"))


def of_span(span: Span, place: int) -> list[Score]:
    """Of the results that are events of a span; one that cannot be read is none."""
    scores: list[Score] = []
    for event in span.events:
        at, marks = event.time_unix_nano, event.attributes
        record = LogRecord(span.trace_id, span.span_id, at, event_name=event.name, attributes=marks)
        with suppress(msgspec.ValidationError):
            scores += [score] if (score := score_of(record, place)) is not None else []
    return scores


def score_of(value: Any, place: int) -> Score | None:
    """None for a record that is no result, or that names no trace. Raises msgspec.ValidationError for one that can't be
    read. `place`: of the record in its file."""
    record = value if isinstance(value, LogRecord) else msgspec.convert(value, LogRecord)
    marks = attributes(record.attributes)
    if (record.event_name or marks.get("event.name")) != RESULT or not record.trace_id:
        return None
    name, number, at = marks.get(NAME), marks.get(VALUE), nanoseconds(record.time_unix_nano)
    if not isinstance(name, str) or not name:
        raise msgspec.ValidationError(f"an evaluation has no {NAME}")
    about = f"{record.trace_id}/{record.span_id}/{name}/{at}/{place}"
    label = marks.get(LABEL)
    word = label if isinstance(label, str) and label else None
    value = float(number) if isinstance(number, int | float) and math.isfinite(number) else None
    return Score(
        id=str(marks.get(ID) or hashlib.sha256(about.encode()).hexdigest()[:32]),
        trace_id=record.trace_id,
        observation_id=record.span_id or None,
        name=name,
        value=value,
        source=str(marks.get(SOURCE) or "EVAL"),
        updated_at=EPOCH + timedelta(microseconds=at // 1000) if 0 < at < 2**63 else None,
        kind="CATEGORICAL" if value is None and word else "NUMERIC",
        word=word,
    )
