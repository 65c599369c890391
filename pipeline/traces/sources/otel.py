"""Reader of OpenTelemetry GenAI spans and log records as OTLP, JSON or protobuf. After the published conventions, and
held against what instrumentations were captured to write.

Owns the meaning of a call (its messages are `genai`'s, its names `conventions`'). Attributes that are no text of it,
the span's and its resource's, are metadata. Recording text is opt-in: a call without any is counted `no_content`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from itertools import chain
from typing import Any

import msgspec

from pipeline.traces.records import Reason
from pipeline.traces.rows import Rejection, Rows, Trace
from pipeline.traces.sources import chat, conventions, evaluations, genai, otlp, otlp_binary
from pipeline.traces.sources.compression import PartLimits
from pipeline.traces.sources.elements import may_be_array
from pipeline.traces.sources.files import JSON, WHOLE, Files
from pipeline.traces.sources.langfuse import count, metadata_text, put
from pipeline.traces.sources.lines import LineBatch, blocks, refusal
from pipeline.traces.sources.moments import EPOCH
from pipeline.traces.sources.otel_calls import DETAILS, RESPONSE_ID, CallJoiner, CallRecord
from pipeline.traces.sources.protocol import Digest, SourcePart

TOOLS = "gen_ai.tool.definitions"
ENDED_IN_CALL = frozenset({"tool_calls", "tool_call", "tool_use", "function_call"})
"""Why an answer ended that holds a call: without one, an instrumentation has lost it."""
LOST_CALL = "output: a text that ended in a call, which is not there"
DROPPED = "input: the SDK dropped attributes of the span"


class Otel:
    """One export request a line, one a file, or each after its length. A row's line is the place of its span or log
    record in the file, from 1; the records of a call are one row with its span."""

    def __init__(self, uri: str, limits: PartLimits | None = None) -> None:
        self.label = uri
        self._files = Files(uri, limits)

    def parts(self) -> list[SourcePart]:
        source_parts = self._files.parts(suffixes=(*JSON, *otlp_binary.FORMATS))
        if not source_parts:
            raise ValueError(
                f"{self.label} has no files of JSON or protobuf. Point traces.source.uri to the folder of the spans."
            )
        return [part._replace(holds="scores") if evaluations.holds_scores(part.name) else part for part in source_parts]

    def rows(self, part: SourcePart, digest: Digest) -> Iterator[Rows]:
        binary, chunks = otlp_binary.is_binary(part.name, self._files.chunks(part, digest))
        if binary:
            batches, decode = otlp_binary.requests(chunks), otlp_binary.decode
        else:
            batches, decode = _requests(blocks(chunks, array=may_be_array(part.name))), otlp.decode
        place, calls = 1, CallJoiner()
        for batch in batches:
            rows = Rows()
            for _, text in batch.lines():
                try:
                    received = list(otlp.records(decode(text)))
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


def _requests(lines: Iterator[LineBatch]) -> Iterator[LineBatch]:
    """A file that holds one request over many lines as one line."""
    head = next(lines, None)
    if head is None:
        return
    if next((text.strip() for _, text in head.lines()), b"") != b"{":
        yield from chain([head], lines)
        return
    size = 0
    texts: list[bytes] = []
    rejected: list[Rejection] = []
    for block in chain([head], lines):
        size += sum(map(len, block.texts))
        rejected += block.rejected
        texts = [*texts, b" ".join(block.texts)] if size <= WHOLE else []
    if size > WHOLE:
        yield LineBatch(1, [], [Rejection(1, Reason.TOO_LONG, detail=f"a request of over {WHOLE} bytes")])
    elif rejected:  # half a request is none
        yield LineBatch(1, [], rejected[:1])
    else:
        yield LineBatch(1, [b" ".join(texts)], [])


def _add(rows: Rows, calls: CallJoiner, received: otlp.Received, place: int) -> None:
    """Put one span or record where it belongs. `of_scores`: whether the file may hold scores."""
    trace_id = day = None
    try:
        if received.is_log:
            if (score := evaluations.score_of(received.record, place)) is not None:
                rows.scores.append(score)
                return
            _put(rows, calls.add_log(place, received.record, received.resource))
            return
        span = msgspec.convert(received.record, otlp.Span)
        trace_id, day = span.trace_id, _moment(otlp.nanoseconds(span.start_time_unix_nano)).date().isoformat()
        rows.scores += evaluations.of_span(span, place)
        span_attributes, row = _attributes(span), CallRecord(place, span, received.resource)
        if not conventions.is_call(span_attributes):
            calls.add_agent(place, span)
            _put(rows, [row])
            return
        response_id = str(span_attributes.get(RESPONSE_ID) or span.span_id)
        has_text = _has_text(span, span_attributes)
        lacks = not has_text or response_id.startswith("resp_") or genai.lacks_tools(span_attributes)
        _put(rows, calls.add_span(row, span.failed or not lacks, has_text, response_id))
    except Exception as error:  # the boundary of one span: whatever it holds, it must not stop the spans beside it
        rows.rejected.append(refusal(place, error, trace_id, day))


def _put(rows: Rows, complete: Iterable[CallRecord]) -> None:
    for call in complete:
        put(rows, _row(call))


def _has_text(span: otlp.Span, span_attributes: dict[str, Any]) -> bool:
    answered = genai.answered(span_attributes, span.events)
    return span.failed or bool(answered.messages or answered.unreadable or answered.failed)


def _attributes(span: otlp.Span) -> dict[str, Any]:
    """The span's own, and those of an event that holds what may also be on the span.

    Definitions of tools are whole in the event: on a span they may lack their parameters, as Google's ADK writes them.
    """
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
        trace_id, moment = call.span.trace_id, _moment(otlp.nanoseconds(call.span.start_time_unix_nano))
        day = moment.date().isoformat()
        span_attributes = _attributes(call.span)
        if not call.of_log and not conventions.is_call(span_attributes):
            return Rejection(call.place, Reason.NOT_GENERATION, trace_id, day)
        return _trace(call.span, moment, span_attributes, call.resource, call.place)
    except Exception as error:  # the boundary of one call, likewise
        return refusal(call.place, error, trace_id, day)


def _trace(
    span: otlp.Span, moment: datetime, span_attributes: dict[str, Any], resource: dict[str, Any], line: int
) -> Trace | Rejection:
    asked, answered = genai.asked(span_attributes, span.events), genai.answered(span_attributes, span.events)
    failed = span.failed or answered.failed
    reason = answered.finish_reason or conventions.finish_reason(span_attributes)
    lost = reason in ENDED_IN_CALL and chat.completion(answered) and not chat.tool_calls(answered)
    unread = asked.unreadable or answered.unreadable or (LOST_CALL if lost else None)
    has_text = bool(asked.messages or answered.messages)
    strange = None if failed else (DROPPED if has_text and span.dropped else unread)
    if not (asked.messages or answered.messages or failed or strange):
        return Rejection(line, Reason.NO_CONTENT, span.trace_id, moment.date().isoformat())
    start, end = otlp.nanoseconds(span.start_time_unix_nano), otlp.nanoseconds(span.end_time_unix_nano)
    input_tokens, output_tokens = conventions.tokens(span_attributes)
    everything = {**resource, **span_attributes}
    return Trace(
        trace_id=span.trace_id,
        observation_id=span.span_id,
        timestamp=moment,
        model=conventions.text_of(span_attributes, conventions.MODELS) or "",
        user_id=conventions.text_of(everything, conventions.USERS),
        session_id=conventions.text_of(everything, conventions.SESSIONS),
        messages=chat.prompt(asked, answered),
        completion=chat.completion(answered),
        tool_calls=chat.tool_calls(answered),
        tools=chat.tools(asked),
        line=line,
        updated_at=_moment(end) if end else None,
        input_tokens=count(input_tokens),
        output_tokens=count(output_tokens),
        latency_s=(end - start) / 1e9 if end and span_attributes.get("logfire.span_type") != "log" else None,
        level="ERROR" if failed else "DEFAULT",
        error=(span.status.message if span.status else "") or conventions.text_of(span_attributes, ("error.type",)),
        finish_reason=reason,
        metadata=metadata_text(conventions.metadata(everything)),
        unreadable=strange,
        name=span.name or None,
        has_payload=asked.has_payload or answered.has_payload,
    )


def _moment(nanoseconds: int) -> datetime:
    if not 0 < nanoseconds < 2**63:
        raise msgspec.ValidationError("a span has no time")
    return EPOCH + timedelta(microseconds=nanoseconds // 1000)
