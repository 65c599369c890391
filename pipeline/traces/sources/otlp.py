"""OTLP: an export request's spans and log records, with their attributes as plain values. After the published protocol.

Owns the envelope: resources, scopes, typed values, 64-bit integers as text. Refuses to know what an attribute means.
Requests in protobuf have the same shape once `otlp_binary` has decoded them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import msgspec

CONTENT = "gen_ai.event.content"
ERROR = (2, "2", "STATUS_CODE_ERROR")


class Resource(msgspec.Struct):
    attributes: list[Any] = []


class ScopeSpans(msgspec.Struct):
    spans: list[Any] = []


class ResourceSpans(msgspec.Struct, rename="camel"):
    resource: Resource | None = None
    scope_spans: list[ScopeSpans] = []


class ScopeLogs(msgspec.Struct, rename="camel"):
    log_records: list[Any] = []


class ResourceLogs(msgspec.Struct, rename="camel"):
    resource: Resource | None = None
    scope_logs: list[ScopeLogs] = []


class ExportRequest(msgspec.Struct, rename="camel"):
    """An ExportTraceServiceRequest or an ExportLogsServiceRequest."""

    resource_spans: list[ResourceSpans] | None = None
    resource_logs: list[ResourceLogs] | None = None


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
        """Attributes and events that the SDK left out because there were too many: which ones, nobody knows."""
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


def decode(text: bytes) -> ExportRequest:
    """A request in JSON. Raises msgspec.DecodeError."""
    request = _decode(text)
    if request.resource_spans is None and request.resource_logs is None:
        raise msgspec.ValidationError("Object missing required field `resourceSpans` or `resourceLogs`")
    return request


def records(request: ExportRequest) -> Iterator[Received]:
    for group in request.resource_spans or []:
        resource = attributes(group.resource.attributes) if group.resource else {}
        for scope in group.scope_spans:
            for span in scope.spans:
                yield Received(span, resource)
    for logs in request.resource_logs or []:
        resource = attributes(logs.resource.attributes) if logs.resource else {}
        for scope in logs.scope_logs:
            for record in scope.log_records:
                yield Received(record, resource, is_log=True)


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
    value = cast(dict[str, Any], body) if isinstance(body, dict) else {}
    fields = value.get("kvlistValue")
    if isinstance(fields, dict):
        return _values(fields)
    return [{"key": CONTENT, "value": value}] if value.get("stringValue") or value.get("arrayValue") else []


def _plain(value: Any) -> Any:
    if not isinstance(value, dict):
        return None
    for kind, inner in cast(dict[str, Any], value).items():
        if kind == "intValue":
            return int(inner)
        if kind == "arrayValue":
            return [_plain(item) for item in _values(inner)]
        if kind == "kvlistValue":
            return attributes(_values(inner))
        return inner
    return None


def _values(value: Any) -> list[Any]:
    items = cast(dict[str, Any], value).get("values") if isinstance(value, dict) else None
    return cast(list[Any], items) if isinstance(items, list) else []
