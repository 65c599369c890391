"""OTLP JSON: an export request's spans, with their attributes as plain values. Written from the published protocol.

Owns the envelope: resources, scopes, typed values, 64-bit integers as text. Refuses to know what an attribute means.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import msgspec

ERROR = (2, "2", "STATUS_CODE_ERROR")


class Resource(msgspec.Struct):
    attributes: list[Any] = []


class ScopeSpans(msgspec.Struct):
    spans: list[Any] = []


class ResourceSpans(msgspec.Struct, rename="camel"):
    resource: Resource | None = None
    scope_spans: list[ScopeSpans] = []


class TraceExportRequest(msgspec.Struct, rename="camel"):
    """An ExportTraceServiceRequest."""

    resource_spans: list[ResourceSpans]


class SpanStatus(msgspec.Struct):
    code: int | str = 0
    message: str = ""


class SpanEvent(msgspec.Struct):
    name: str = ""
    attributes: list[Any] = []


class Span(msgspec.Struct, rename="camel"):
    trace_id: str
    span_id: str
    start_time_unix_nano: int | str
    end_time_unix_nano: int | str = 0
    attributes: list[Any] = []
    events: list[SpanEvent] = []
    status: SpanStatus | None = None

    @property
    def failed(self) -> bool:
        return self.status is not None and self.status.code in ERROR


class ReceivedSpan(NamedTuple):
    span: Any
    """As it was sent: `msgspec.convert(span, Span)` may refuse it, and no other."""
    resource: dict[str, Any]


decode = msgspec.json.Decoder(TraceExportRequest).decode


def spans(request: TraceExportRequest) -> Iterator[ReceivedSpan]:
    for group in request.resource_spans:
        resource = attributes(group.resource.attributes) if group.resource else {}
        for scope in group.scope_spans:
            for span in scope.spans:
                yield ReceivedSpan(span, resource)


def attributes(pairs: list[Any]) -> dict[str, Any]:
    """`[{key, value}]` as an object of plain values."""
    key_values = [msgspec.convert(pair, dict[str, Any]) for pair in pairs]
    return {str(pair.get("key")): _plain(pair.get("value")) for pair in key_values}


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
