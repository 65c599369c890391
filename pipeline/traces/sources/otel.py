"""Reader of OpenTelemetry GenAI spans and log records as OTLP, after the published conventions, and held against what
instrumentations were captured to write. Recording text is opt-in: a call without any is counted `no_content`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from pipeline.core import layout
from pipeline.traces.records import Reason
from pipeline.traces.rows import Rejection, Rows, Trace
from pipeline.traces.sources import chat, genai, otlp
from pipeline.traces.sources.fields import EPOCH, count, metadata_text, put, said
from pipeline.traces.sources.files import FilesSource
from pipeline.traces.sources.lines import blocks, refusal
from pipeline.traces.sources.protocol import Digest, SourcePart

TOOLS = "gen_ai.tool.definitions"
ENDED_IN_CALL = frozenset({"tool_calls", "tool_call", "tool_use", "function_call"})
"""Why an answer ended that holds a call: without one, an instrumentation has lost it."""
LOST_CALL = "output: a text that ended in a call, which is not there"
DROPPED = "input: the SDK dropped attributes of the span"

_WHOLE = "gen_ai.client.inference.operation.details"
DETAILS = frozenset({_WHOLE, "gen_ai.content.prompt", "gen_ai.content.completion"})
"""Events that hold what the conventions otherwise put on the span."""
RESPONSE_ID = "gen_ai.response.id"
_OF_AGENT = (TOOLS, "gen_ai.conversation.id")
"""What the span of an agent says of the calls below it."""
HELD = 1 << 16
"""Records and spans that wait for each other, at most: then they are read as they are."""
_TEXT_WEIGHS = 16
"""A span that waits with its text counts for so many."""


class Otel(FilesSource):
    """A row's line is the place of its span or log record in the file, from 1; the records of a call are one row with
    its span."""

    nothing = "JSON lines of OTLP. Point traces.source.uri to the folder of the spans."

    def parts(self) -> list[SourcePart]:
        parts = super().parts()
        return [
            part._replace(holds="scores") if layout.EVALUATION_RESULTS in part.name.split("/")[:-1] else part
            for part in parts
        ]

    def rows(self, part: SourcePart, digest: Digest) -> Iterator[Rows]:
        place, calls = 1, CallJoiner()
        for batch in blocks(self._files.chunks(part, digest), part.name):
            rows = Rows()
            for _, text in batch.lines():
                try:
                    received = list(otlp.records(otlp.decode(text)))
                except (ValueError, RecursionError) as error:
                    rows.rejected.append(refusal(place, error))
                    place += 1
                    continue
                for each in received:
                    _add(rows, calls, each, place)
                    place += 1
            for rest in batch.rejected:
                rows.rejected.append(Rejection(place, rest.reason, detail=rest.detail))
                place += 1
            yield rows
        rows = Rows()
        _put(rows, calls.rest())
        yield rows


def _add(rows: Rows, calls: CallJoiner, received: otlp.Received, place: int) -> None:
    trace_id = day = None
    try:
        if received.is_log:
            if (score := otlp.score_of(received.record, place)) is not None:
                rows.scores.append(score)
            else:
                _put(rows, calls.add_log(place, received.record, received.resource))
            return
        span = msgspec.convert(received.record, otlp.Span)
        trace_id, day = span.trace_id, _moment(otlp.nanoseconds(span.start_time_unix_nano)).date().isoformat()
        rows.scores += otlp.of_span(span, place)
        span_attributes, row = _attributes(span), CallRecord(place, span, received.resource)
        if not genai.is_call(span_attributes):
            calls.add_agent(place, span)
            _put(rows, [row])
            return
        response_id = str(span_attributes.get(RESPONSE_ID) or span.span_id)
        answered = genai.answered(span_attributes, span.events)
        has_text = span.failed or bool(answered.messages or answered.unreadable or answered.failed)
        lacks = not has_text or response_id.startswith("resp_") or genai.lacks_tools(span_attributes)
        _put(rows, calls.add_span(row, span.failed or not lacks, has_text, response_id))
    except Exception as error:  # the boundary of one span: it must not stop the others
        rows.rejected.append(refusal(place, error, trace_id, day))


def _put(rows: Rows, complete: Iterable[CallRecord]) -> None:
    for call in complete:
        put(rows, _row(call))


def _attributes(span: otlp.Span) -> dict[str, Any]:
    """The span's own, and those of an event that holds what may also be on the span. Definitions of tools are whole in
    the event: on a span they may lack their parameters, as Google's ADK writes them."""
    span_attributes = otlp.attributes(span.attributes)
    for event in span.events:
        if event.name in DETAILS:
            of_event = otlp.attributes(event.attributes)
            defined = of_event.get(TOOLS) or span_attributes.get(TOOLS)
            span_attributes = {**of_event, **span_attributes, **({TOOLS: defined} if defined else {})}
    return span_attributes


def _row(call: CallRecord) -> Trace | Rejection:
    trace_id = day = None
    try:
        if call.span is None:
            assert call.record is not None, "it is a record of a log"
            return Rejection(call.place, Reason.NOT_GENERATION, call.record.trace_id or None)
        span, start = call.span, otlp.nanoseconds(call.span.start_time_unix_nano)
        trace_id, moment = span.trace_id, _moment(start)
        day = moment.date().isoformat()
        span_attributes = _attributes(span)
        if not call.of_log and not genai.is_call(span_attributes):
            return Rejection(call.place, Reason.NOT_GENERATION, trace_id, day)
        asked = genai.asked(span_attributes, span.events)
        answered = genai.answered(span_attributes, span.events)
        reason = answered.finish_reason or genai.finish_reason(span_attributes)
        if reason in ENDED_IN_CALL and chat.completion(answered) and not chat.tool_calls(answered):
            answered.unreadable = answered.unreadable or LOST_CALL
        end = otlp.nanoseconds(span.end_time_unix_nano)
        input_tokens, output_tokens = genai.tokens(span_attributes)
        everything = {**call.resource, **span_attributes}
        trace = Trace(
            trace_id=span.trace_id,
            observation_id=span.span_id,
            timestamp=moment,
            model=genai.text_of(span_attributes, genai.MODELS) or "",
            user_id=genai.text_of(everything, genai.USERS),
            session_id=genai.text_of(everything, genai.SESSIONS),
            messages=[],
            completion="",
            line=call.place,
            updated_at=_moment(end) if end else None,
            input_tokens=count(input_tokens),
            output_tokens=count(output_tokens),
            latency_s=(end - start) / 1e9 if end and span_attributes.get("logfire.span_type") != "log" else None,
            error=(span.status.message if span.status else "") or genai.text_of(span_attributes, ("error.type",)),
            finish_reason=reason,
            metadata=metadata_text(genai.metadata(everything)),
            unreadable=DROPPED if span.dropped and (asked.messages or answered.messages) else None,
            name=span.name or None,
        )
        return said(trace, asked, answered, span.failed)
    except Exception as error:  # the boundary of one call, likewise
        return refusal(call.place, error, trace_id, day)


def _moment(nanoseconds: int) -> datetime:
    if not 0 < nanoseconds < 2**63:
        raise msgspec.ValidationError("a span has no time")
    return EPOCH + timedelta(microseconds=nanoseconds // 1000)


class CallRecord(NamedTuple):
    """One row of the file. `span`: None where a record of a log is no part of a call. `of_log`: it never came."""

    place: int
    span: otlp.Span | None
    resource: dict[str, Any]
    record: otlp.LogRecord | None = None
    of_log: bool = False


class CallJoiner:
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
        if name not in DETAILS and not genai.is_message_event(name):
            yield CallRecord(place, None, resource, record)
            return
        response_id = str(otlp.attributes(record.attributes).get(RESPONSE_ID) or f"{record.trace_id}-{place}")
        key = record.span_id or self._span_of.get(response_id, response_id)
        if key not in self._read:
            _time(record)
            self._events.setdefault(key, []).append((place, record, resource))
            yield from self._hold()

    def rest(self) -> Iterator[CallRecord]:
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
