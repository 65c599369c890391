"""OTLP files that are no text: requests in protobuf, one a file or each after its length, as the Collector writes them.

Owns where a request begins and ends and its way into the shapes of `otlp`. The Collector's file exporter puts four
bytes before each request of `format: proto`, the length, most significant byte first; with `compression: zstd` each is
compressed alone, JSON too. A request of over `max_size` bytes is never held in memory.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec

from pipeline.traces.records import Reason
from pipeline.traces.rows import Rejection
from pipeline.traces.sources import otlp
from pipeline.traces.sources.compression import ENDINGS, Broken, decompressed
from pipeline.traces.sources.lines import LineBatch
from pipeline.traces.sources.protocol import BLOCK, MAX_LINE

if TYPE_CHECKING:  # protobuf's classes are generated when they are first used
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

FORMATS = (".pb", ".binpb", ".proto", ".bin")
_FIRST_FIELD = b"\x0a"
"""A request begins with its field 1, of a length that follows; a length before it would be one of over 160 MB."""
_PREFIX = 4
MAX_INFLATED = 4 * MAX_LINE
"""Bytes of a request that was compressed alone."""
_ZSTD = b"\x28\xb5\x2f\xfd"


def is_binary(name: str, chunks: Iterator[bytes]) -> tuple[bool, Iterator[bytes]]:
    """Whether a file is of this kind, by its name or a length at its beginning, and all of its content."""
    bare = next((name.removesuffix(end) for end in ENDINGS if name.endswith(end)), name)
    if bare.endswith(FORMATS):
        return True, chunks
    try:
        head = next(chunks, b"")
    except Broken as error:
        return False, _broken(error)
    return head.startswith(b"\0"), chain([head], chunks)


def requests(chunks: Iterator[bytes], max_size: int = MAX_LINE) -> Iterator[LineBatch]:
    """The requests of a file, as `lines.blocks` gives lines."""
    try:
        head = next(chunks, b"")
        whole = chain([head], chunks)
    except Broken as error:
        head, whole = b"", _broken(error)
    yield from _one(whole, max_size) if head.startswith(_FIRST_FIELD) else _framed(whole, max_size)


def decode(text: bytes) -> otlp.ExportRequest:
    """A request in protobuf or JSON. Raises msgspec.DecodeError, or ValidationError for one that holds neither spans
    nor log records."""
    if text.startswith(_ZSTD):
        text = _inflated(text)
    if text.lstrip()[:1] == b"{":
        return otlp.decode(text)
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    # Both kinds have the same numbers for all but the records, and a log's have a time where a span has its id.
    traces = _parsed(ExportTraceServiceRequest, text)
    spans = [] if traces is None else list(_records(traces.resource_spans, "scope_spans", "spans"))
    if traces is not None and (not spans or any(len(span.trace_id) == 16 for span in spans)):
        return otlp.ExportRequest(resource_spans=[_spans(group) for group in traces.resource_spans])
    logs = _parsed(ExportLogsServiceRequest, text)
    if logs is None:
        raise msgspec.DecodeError("the request is no protobuf of OTLP")
    records = _records(logs.resource_logs, "scope_logs", "log_records")
    if not any(record.time_unix_nano or record.observed_time_unix_nano for record in records):
        raise msgspec.ValidationError("the request holds neither spans nor log records")
    return otlp.ExportRequest(resource_logs=[_logs(group) for group in logs.resource_logs])


def _parsed(kind: Any, text: bytes) -> Any:
    from google.protobuf.message import DecodeError

    try:
        return kind.FromString(text)
    except DecodeError:
        return None


def _inflated(text: bytes) -> bytes:
    """A request that was compressed alone. Raises msgspec.DecodeError where it inflates beyond MAX_INFLATED."""
    size, pieces = 0, list[bytes]()
    try:
        for piece in decompressed(iter([text]), ""):
            size += len(piece)
            if size > MAX_INFLATED:
                raise msgspec.DecodeError(f"the request inflates to over {MAX_INFLATED} bytes")
            pieces.append(piece)
    except Broken as error:
        raise msgspec.DecodeError(f"{error}") from error
    return b"".join(pieces)


def _broken(error: Broken) -> Iterator[bytes]:
    yield from ()
    raise error


def _one(chunks: Iterator[bytes], max_size: int) -> Iterator[LineBatch]:
    held, size = [b""], 0
    broken: Broken | None = None
    try:
        for chunk in chunks:
            size += len(chunk)
            held = [*held, chunk] if size <= max_size else []
    except Broken as error:
        broken = error
    if broken:  # half a request is none
        yield LineBatch(1, [], [Rejection(1, broken.reason, detail=str(broken))])
    elif size > max_size:
        yield LineBatch(1, [], [Rejection(1, Reason.TOO_LONG, detail=f"a request of over {max_size} bytes")])
    else:
        yield LineBatch(1, [b"".join(held)], [])


def _framed(chunks: Iterator[bytes], max_size: int) -> Iterator[LineBatch]:
    texts: list[bytes] = []
    rejected: list[Rejection] = []
    held, size, skip = b"", 0, 0
    broken: Broken | None = None
    try:
        for chunk in chunks:
            held, skip = (b"", skip - len(chunk)) if len(chunk) <= skip else (held + chunk[skip:], 0)
            while len(held) >= _PREFIX:
                length = int.from_bytes(held[:_PREFIX], "big")
                if length > max_size:
                    detail = f"a request of over {max_size} bytes"
                    yield LineBatch(1, texts, [*rejected, Rejection(1, Reason.TOO_LONG, detail=detail)])
                    texts, rejected, size = [], [], 0
                    skip = max(_PREFIX + length - len(held), 0)
                    held = held[_PREFIX + length :]
                    continue
                if len(held) < _PREFIX + length:
                    break
                texts.append(held[_PREFIX : _PREFIX + length])
                size += length
                held = held[_PREFIX + length :]
            if size >= BLOCK:
                yield LineBatch(1, texts, rejected)
                texts, rejected, size = [], [], 0
    except Broken as error:
        broken = error
    if held or skip:
        broken = broken or Broken("the file breaks off in a request")
    if broken:
        rejected.append(Rejection(1, broken.reason, detail=str(broken)))
    if texts or rejected:
        yield LineBatch(1, texts, rejected)


def _spans(group: Any) -> otlp.ResourceSpans:
    scopes = [otlp.ScopeSpans([_span(span) for span in scope.spans]) for scope in group.scope_spans]
    return otlp.ResourceSpans(otlp.Resource(_pairs(group.resource.attributes)), scopes)


def _logs(group: Any) -> otlp.ResourceLogs:
    scopes = [otlp.ScopeLogs([_log(record) for record in scope.log_records]) for scope in group.scope_logs]
    return otlp.ResourceLogs(otlp.Resource(_pairs(group.resource.attributes)), scopes)


def _records(groups: Any, scopes: str, records: str) -> Iterator[Any]:
    for group in groups:
        for scope in getattr(group, scopes):
            yield from getattr(scope, records)


def _span(span: Any) -> dict[str, Any]:
    return {
        "traceId": span.trace_id.hex(),
        "spanId": span.span_id.hex(),
        "parentSpanId": span.parent_span_id.hex(),
        "name": span.name,
        "startTimeUnixNano": span.start_time_unix_nano,
        "endTimeUnixNano": span.end_time_unix_nano,
        "attributes": _pairs(span.attributes),
        "droppedAttributesCount": span.dropped_attributes_count,
        "events": [_event(event) for event in span.events],
        "droppedEventsCount": span.dropped_events_count,
        "status": {"code": span.status.code, "message": span.status.message},
    }


def _event(event: Any) -> dict[str, Any]:
    dropped = event.dropped_attributes_count
    return {
        "timeUnixNano": event.time_unix_nano,
        "name": event.name,
        "attributes": _pairs(event.attributes),
        "droppedAttributesCount": dropped,
    }


def _log(record: Any) -> dict[str, Any]:
    return {
        "traceId": record.trace_id.hex(),
        "spanId": record.span_id.hex(),
        "timeUnixNano": record.time_unix_nano,
        "observedTimeUnixNano": record.observed_time_unix_nano,
        "eventName": record.event_name,
        "attributes": _pairs(record.attributes),
        "droppedAttributesCount": record.dropped_attributes_count,
        "body": _value(record.body),
    }


def _pairs(pairs: Any) -> list[dict[str, Any]]:
    """`[{key, value}]` as OTLP's JSON has them."""
    return [_pair(pair) for pair in pairs]


def _pair(pair: KeyValue) -> dict[str, Any]:
    return {"key": pair.key, "value": _value(pair.value)}


def _value(value: AnyValue) -> dict[str, Any]:
    kind = value.WhichOneof("value")
    if kind == "string_value":
        return {"stringValue": value.string_value}
    if kind == "array_value":
        return {"arrayValue": {"values": [_value(item) for item in value.array_value.values]}}
    if kind == "kvlist_value":
        return {"kvlistValue": {"values": _pairs(value.kvlist_value.values)}}
    if kind == "bytes_value":
        return {"bytesValue": base64.b64encode(value.bytes_value).decode()}
    if kind in _PLAIN:
        return {_PLAIN[kind]: getattr(value, kind)}
    return {}


_PLAIN = {"int_value": "intValue", "double_value": "doubleValue", "bool_value": "boolValue"}
