"""The model calls of a file of OTLP: its spans, joined with the log records that hold their text.

The conventions let an instrumentation write a call's messages as events of a log, one record each or one for the whole
call, that name the call's span. Owns the join, within one file: a span without text waits there for its records, and
records whose span never comes are a call of their own. Refuses to know what a message looks like.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from pipeline.traces.sources import otlp
from pipeline.traces.sources.genai import is_message_event

DETAILS = frozenset({"gen_ai.client.inference.operation.details", "gen_ai.content.prompt", "gen_ai.content.completion"})
"""Events that hold what the conventions otherwise put on the span."""
HELD = 1 << 16
"""Records and spans that wait for each other, at most: then they are read as they are."""


class CallRecord(NamedTuple):
    """One row of the file. `span`: None where a record of a log is no part of a call. `of_log`: it never came."""

    place: int
    span: otlp.Span | None
    resource: dict[str, Any]
    record: otlp.LogRecord | None = None
    of_log: bool = False


class CallJoiner:
    """Takes the records of one file in their order."""

    def __init__(self) -> None:
        self._events: dict[str, list[tuple[int, otlp.LogRecord, dict[str, Any]]]] = {}
        self._waiting: dict[str, CallRecord] = {}
        self._read: set[str] = set()
        self._held = 0

    def add_span(self, place: int, span: otlp.Span, resource: dict[str, Any], has_text: bool) -> Iterator[CallRecord]:
        """The rows that are complete now. `has_text`: the span needs no records, or has no use for them."""
        row = CallRecord(place, span, resource)
        if has_text:
            self._read.add(span.span_id)
            yield _joined(row, self._events.pop(span.span_id, []))
        else:
            if span.span_id in self._waiting:  # exported twice
                yield self._waiting[span.span_id]
            self._waiting[span.span_id] = row
            yield from self._hold()

    def add_log(self, place: int, value: Any, resource: dict[str, Any]) -> Iterator[CallRecord]:
        """The rows that are complete now. Raises msgspec.ValidationError for what is no record."""
        record = msgspec.convert(value, otlp.LogRecord)
        name = record.event_name or str(otlp.attributes(record.attributes).get("event.name", ""))
        record = msgspec.structs.replace(record, event_name=name)
        if name not in DETAILS and not is_message_event(name):
            yield CallRecord(place, None, resource, record)
        elif record.span_id not in self._read:
            _time(record)
            self._events.setdefault(record.span_id, []).append((place, record, resource))
            yield from self._hold()

    def rest(self) -> Iterator[CallRecord]:
        """What still waits when the file ends."""
        for span_id, row in self._waiting.items():
            yield _joined(row, self._events.pop(span_id, []))
        for events in self._events.values():
            place, record, resource = events[0]
            start = min(_time(each) for _, each, _ in events)
            whole = [each for _, each, _ in events if each.event_name in DETAILS]
            own = whole[0].attributes + otlp.pairs_of(whole[0].body) if whole else []
            id = record.span_id or f"{record.trace_id}-{place}"
            span = otlp.Span(record.trace_id, id, start_time_unix_nano=start, attributes=own)
            yield _joined(CallRecord(place, span, resource, of_log=True), events)
        self._waiting, self._events, self._held = {}, {}, 0

    def _hold(self) -> Iterator[CallRecord]:
        self._held += 1
        if self._held > HELD:
            yield from self.rest()


def _joined(row: CallRecord, events: list[tuple[int, otlp.LogRecord, dict[str, Any]]]) -> CallRecord:
    if not events or row.span is None:
        return row
    in_time = sorted((record for _, record, _ in events), key=_time)
    added = [otlp.SpanEvent(each.event_name, [*each.attributes, *otlp.pairs_of(each.body)]) for each in in_time]
    return row._replace(span=msgspec.structs.replace(row.span, events=[*row.span.events, *added]))


def _time(record: otlp.LogRecord) -> int:
    """When it happened, else when it was seen. Raises msgspec.ValidationError."""
    return otlp.nanoseconds(record.time_unix_nano) or otlp.nanoseconds(record.observed_time_unix_nano)
