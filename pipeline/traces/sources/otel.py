"""Reader of OpenTelemetry GenAI spans and log records as OTLP, after the published conventions, and held against what
instrumentations were captured to write. Recording text is opt-in: a call without any is counted `no_content`."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import msgspec

from pipeline.core import layout
from pipeline.traces.records import Reason
from pipeline.traces.rows import Rejection, Rows, Trace
from pipeline.traces.sources import chat, genai, otlp
from pipeline.traces.sources.fields import EPOCH, count, metadata_text, put, said
from pipeline.traces.sources.files import LINES, Files
from pipeline.traces.sources.lines import blocks, elements, refusal
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
HELD = 1 << 13
"""Calls that wait for their records, at most: then the oldest are read as they are."""


class Otel:
    """A row's line is the place of its span or log record in the file, from 1; the records of a call are one row with
    its span."""

    def __init__(self, uri: str) -> None:
        self.label = uri
        self._files = Files(uri)

    def parts(self) -> list[SourcePart]:
        parts = self._files.parts(suffixes=(*LINES, ".json"))
        if not parts:
            raise ValueError(
                f"{self.label} has no JSON lines of OTLP. Point traces.source.uri to the folder of the spans."
            )
        return [
            part._replace(holds="scores") if layout.EVALUATION_RESULTS in part.name.split("/")[:-1] else part
            for part in parts
        ]

    def rows(self, part: SourcePart, digest: Digest) -> Iterator[Rows]:
        place, calls = 0, Calls()
        split = elements if part.name.removesuffix(".gz").endswith(".json") else blocks
        for batch in split(self._files.chunks(part, digest)):
            rows = Rows()
            for _, text in batch.lines():
                try:
                    received = list(otlp.records(otlp.decode(text)))
                except (ValueError, RecursionError) as error:
                    place += 1
                    rows.rejected.append(refusal(place, error))
                    continue
                for each in received:
                    place += 1
                    calls.add(rows, each, place)
            for rest in batch.rejected:
                place += 1
                rows.rejected.append(Rejection(place, rest.reason, detail=rest.detail))
            calls.flush(rows, HELD)
            yield rows
        rows = Rows()
        calls.flush(rows, 0)
        yield rows


class SpanRecords(msgspec.Struct):
    """The records of one call. Without a span there are log records alone."""

    place: int
    resource: dict[str, Any]
    span: otlp.Span | None = None
    logs: list[otlp.LogRecord] = []


class Calls:
    """Calls by the id of their span, in the order in which they came."""

    def __init__(self) -> None:
        self._calls: dict[str, SpanRecords] = {}
        self._agents: dict[str, list[Any]] = {}
        self._responses: dict[str, str] = {}
        """The span of a response: some records name the response and no span."""

    def add(self, rows: Rows, received: otlp.Received, place: int) -> None:
        trace_id = day = None
        try:
            if received.is_log:
                self._add_log(rows, received, place)
                return
            span = msgspec.convert(received.record, otlp.Span)
            trace_id, day = span.trace_id, _moment(otlp.nanoseconds(span.start_time_unix_nano)).date().isoformat()
            rows.scores += (scores := otlp.of_span(span, place))
            span_attributes = _attributes(span)
            if not genai.is_call(span_attributes):
                for score in scores if not span.parent_span_id else ():  # those of the root are the trace's
                    score.observation_id = None
                own = [pair for pair in span.attributes if isinstance(pair, dict) and pair.get("key") in _OF_AGENT]
                self._agents.update({span.span_id: own} if own else {})
                rows.rejected.append(Rejection(place, Reason.NOT_GENERATION, trace_id, day))
                return
            known = self._calls.get(span.span_id)
            if known is not None and known.span is not None:  # exported twice
                self._put(rows, self._calls.pop(span.span_id))
            call = self._calls.setdefault(span.span_id, SpanRecords(place, received.resource))
            call.place, call.resource, call.span = place, received.resource, span
            if response_id := str(span_attributes.get(RESPONSE_ID) or ""):
                early = self._calls.pop(response_id, None)
                call.logs += early.logs if early is not None else []
                self._responses[response_id] = span.span_id
        except Exception as error:  # the boundary of one record: it must not stop the others
            rows.rejected.append(refusal(place, error, trace_id, day))

    def _add_log(self, rows: Rows, received: otlp.Received, place: int) -> None:
        record = msgspec.convert(received.record, otlp.LogRecord)
        if (score := otlp.score_of(record, place)) is not None:
            rows.scores.append(score)
            return
        name = record.event_name or str(otlp.attributes(record.attributes).get("event.name", ""))
        if name not in DETAILS and not genai.is_message_event(name):
            rows.rejected.append(Rejection(place, Reason.NOT_GENERATION, record.trace_id or None))
            return
        _time(record)
        response_id = str(otlp.attributes(record.attributes).get(RESPONSE_ID) or f"{record.trace_id}-{place}")
        key = record.span_id or self._responses.get(response_id, response_id)
        call = self._calls.setdefault(key, SpanRecords(place, received.resource))
        call.logs.append(msgspec.structs.replace(record, event_name=name))

    def flush(self, rows: Rows, most: int) -> None:
        """Put the rows of all calls but the newest `most`."""
        for key in [*self._calls][: max(len(self._calls) - most, 0)]:
            self._put(rows, self._calls.pop(key))
        for known in (self._agents, self._responses):
            for key in [*known][: max(len(known) - most, 0)]:
                del known[key]

    def _put(self, rows: Rows, call: SpanRecords) -> None:
        trace_id = day = None
        try:
            in_time = sorted(call.logs, key=_time)
            if (span := call.span) is None:
                whole = next((each for each in call.logs if each.event_name in DETAILS), None)
                own = whole.attributes + otlp.pairs_of(whole.body) if whole else []
                first, id = in_time[0], call.logs[0].span_id or f"{call.logs[0].trace_id}-{call.place}"
                span = otlp.Span(first.trace_id, id, _time(first), attributes=own)
            added = [
                otlp.SpanEvent(log.event_name, log.attributes + otlp.pairs_of(log.body), log.dropped_attributes_count)
                for log in in_time
            ]
            if own := self._agents.get(span.parent_span_id):
                added.append(otlp.SpanEvent(_WHOLE, own))
            span = msgspec.structs.replace(span, events=[*span.events, *added])
            trace_id, day = span.trace_id, _moment(otlp.nanoseconds(span.start_time_unix_nano)).date().isoformat()
            put(rows, _row(span, call))
        except Exception as error:  # the boundary of one call, likewise
            rows.rejected.append(refusal(call.place, error, trace_id, day))


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


def _row(span: otlp.Span, call: SpanRecords) -> Trace | Rejection:
    span_attributes, start = _attributes(span), otlp.nanoseconds(span.start_time_unix_nano)
    asked, answered = genai.asked(span_attributes, span.events), genai.answered(span_attributes, span.events)
    reason = answered.finish_reason or genai.finish_reason(span_attributes)
    if reason in ENDED_IN_CALL and chat.completion(answered) and not chat.tool_calls(answered):
        answered.unreadable = answered.unreadable or LOST_CALL
    end = otlp.nanoseconds(span.end_time_unix_nano)
    input_tokens, output_tokens = genai.tokens(span_attributes)
    everything = {**call.resource, **span_attributes}
    trace = Trace(
        trace_id=span.trace_id,
        observation_id=span.span_id,
        timestamp=_moment(start),
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


def _moment(nanoseconds: int) -> datetime:
    if not 0 < nanoseconds < 2**63:
        raise msgspec.ValidationError("a span has no time")
    return EPOCH + timedelta(microseconds=nanoseconds // 1000)


def _time(record: otlp.LogRecord) -> int:
    """When it happened, else when it was seen. Raises msgspec.ValidationError."""
    return otlp.nanoseconds(record.time_unix_nano) or otlp.nanoseconds(record.observed_time_unix_nano)
