"""The model calls of a file of OTLP: its spans, joined with the log records that hold their text.

The conventions let an instrumentation write a call's messages as events of a log, one record each or one for the whole
call, that name the call's span, or the response alone. The span of an agent says of the calls below it which tools
they had. Owns the join, within one file: a span that lacks something waits there for it, and records whose span never
comes are a call of their own. Refuses to know what a message looks like.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from pipeline.traces.sources import otlp
from pipeline.traces.sources.genai import is_message_event

_WHOLE = "gen_ai.client.inference.operation.details"
DETAILS = frozenset({_WHOLE, "gen_ai.content.prompt", "gen_ai.content.completion"})
"""Events that hold what the conventions otherwise put on the span."""
RESPONSE_ID = "gen_ai.response.id"
_OF_AGENT = ("gen_ai.tool.definitions", "gen_ai.conversation.id")
"""What the span of an agent says of the calls below it."""
HELD = 1 << 16
"""Records and spans that wait for each other, at most: then they are read as they are."""
_TEXT_WEIGHS = 16
"""A span that waits with its text counts for so many."""


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
        self._below: dict[str, list[str]] = {}
        self._span_of: dict[str, str] = {}
        self._read: set[str] = set()
        self._held = 0

    def add_span(self, row: CallRecord, complete: bool, has_text: bool, response_id: str) -> Iterator[CallRecord]:
        """The rows that are complete now. `complete`: the span needs nothing else, or has no use for it. `response_id`:
        the span's own id where it names none."""
        span = row.span
        assert span is not None, "a record of a log is added otherwise"
        if response_id != span.span_id and response_id in self._events:  # some records name the response, and no span
            self._events.setdefault(span.span_id, []).extend(self._events.pop(response_id))
        if complete:
            self._read.add(span.span_id)
            self._read.add(response_id)
            yield _joined(row, self._events.pop(span.span_id, []))
            return
        if span.span_id in self._waiting:  # exported twice
            yield self._waiting[span.span_id]
        self._waiting[span.span_id] = row
        self._below.setdefault(span.parent_span_id, []).append(span.span_id)
        self._span_of[response_id] = span.span_id
        yield from self._hold(_TEXT_WEIGHS if has_text else 1)

    def add_agent(self, place: int, span: otlp.Span) -> None:
        """What the span of an agent says of the calls below it that wait."""
        own = [pair for pair in span.attributes if isinstance(pair, dict) and pair.get("key") in _OF_AGENT]
        for below in self._below.pop(span.span_id, []) if own else []:
            record = otlp.LogRecord(span.trace_id, below, event_name=_WHOLE, attributes=own)
            self._events.setdefault(below, []).append((place, record, {}))

    def add_log(self, place: int, value: Any, resource: dict[str, Any]) -> Iterator[CallRecord]:
        """The rows that are complete now. Raises msgspec.ValidationError for what is no record."""
        record = msgspec.convert(value, otlp.LogRecord)
        name = record.event_name or str(otlp.attributes(record.attributes).get("event.name", ""))
        record = msgspec.structs.replace(record, event_name=name)
        if name not in DETAILS and not is_message_event(name):
            yield CallRecord(place, None, resource, record)
            return
        response_id = str(otlp.attributes(record.attributes).get(RESPONSE_ID) or f"{record.trace_id}-{place}")
        key = record.span_id or self._span_of.get(response_id, response_id)
        if key not in self._read:
            _time(record)
            self._events.setdefault(key, []).append((place, record, resource))
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
        self._waiting, self._events, self._below, self._span_of, self._held = {}, {}, {}, {}, 0

    def _hold(self, weight: int = 1) -> Iterator[CallRecord]:
        self._held += weight
        if self._held > HELD:
            yield from self.rest()


def _joined(row: CallRecord, events: list[tuple[int, otlp.LogRecord, dict[str, Any]]]) -> CallRecord:
    if not events or row.span is None:
        return row
    in_time = sorted((record for _, record, _ in events), key=_time)
    added = [
        otlp.SpanEvent(each.event_name, [*each.attributes, *otlp.pairs_of(each.body)], each.dropped_attributes_count)
        for each in in_time
    ]
    return row._replace(span=msgspec.structs.replace(row.span, events=[*row.span.events, *added]))


def _time(record: otlp.LogRecord) -> int:
    """When it happened, else when it was seen. Raises msgspec.ValidationError."""
    return otlp.nanoseconds(record.time_unix_nano) or otlp.nanoseconds(record.observed_time_unix_nano)
