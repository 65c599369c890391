"""Reader of OpenTelemetry GenAI spans as OTLP JSON. Written from the published conventions, not from real files.

Owns the meaning of a span (its messages are `genai`'s). Attributes outside `gen_ai.*`, the span's and its resource's,
are metadata. Recording text is opt-in: a call without any is counted `no_content`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import chain
from typing import Any, cast

import msgspec

from pipeline.traces.records import Reason
from pipeline.traces.rows import Rejection, Rows, Trace
from pipeline.traces.sources import chat, genai, otlp
from pipeline.traces.sources.elements import may_be_array
from pipeline.traces.sources.files import WHOLE, Files
from pipeline.traces.sources.langfuse import count, metadata_text, put
from pipeline.traces.sources.lines import LineBatch, blocks, refusal
from pipeline.traces.sources.moments import EPOCH
from pipeline.traces.sources.protocol import Digest, SourcePart

MODEL_CALLS = frozenset({"chat", "text_completion", "generate_content"})
"""`gen_ai.operation.name` of a call; other operations (embeddings, execute_tool, invoke_agent) hold no answer."""
_INPUT_TOKENS = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt")
_OUTPUT_TOKENS = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion")
_PLACED = ("gen_ai.", "llm.", "ai.prompt", "ai.response", "input.", "output.")
"""Beginnings of attributes that are not metadata."""
_DETAILS = ("gen_ai.client.inference.operation.details", "gen_ai.content.prompt", "gen_ai.content.completion")
"""Events that hold what the conventions otherwise put on the span."""


class Otel:
    """One export request a line, or one a file. A row's line is the place of its span in the file, from 1."""

    def __init__(self, uri: str) -> None:
        self.label = uri
        self._files = Files(uri)

    def parts(self) -> list[SourcePart]:
        source_parts = self._files.parts()
        if not source_parts:
            raise ValueError(f"{self.label} has no JSON files. Point traces.source.uri to the folder of the spans.")
        return source_parts

    def rows(self, part: SourcePart, digest: Digest) -> Iterator[Rows]:
        place = 1
        for block in _requests(blocks(self._files.chunks(part, digest), array=may_be_array(part.name))):
            rows = Rows()
            for _, text in block.lines():
                try:
                    request_spans = list(otlp.spans(otlp.decode(text)))
                except (ValueError, RecursionError) as error:
                    rows.rejected.append(refusal(place, error))
                    place += 1
                    continue
                for span, resource in request_spans:
                    put(rows, _row(span, resource, place))
                    place += 1
            for rest in block.rejected:
                rows.rejected.append(Rejection(place, rest.reason, detail=rest.detail))
                place += 1
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


def _row(value: Any, resource: dict[str, Any], line: int) -> Trace | Rejection:
    trace_id = day = None
    try:
        span = msgspec.convert(value, otlp.Span)
        trace_id, moment = span.trace_id, _moment(_nanoseconds(span.start_time_unix_nano))
        day = moment.date().isoformat()
        span_attributes = otlp.attributes(span.attributes)
        for event in span.events:
            if event.name in _DETAILS:
                span_attributes = {**otlp.attributes(event.attributes), **span_attributes}
        if not _is_call(span_attributes):
            return Rejection(line, Reason.NOT_GENERATION, trace_id, day)
        return _trace(span, moment, span_attributes, resource, line)
    except Exception as error:  # the boundary of one span: whatever it holds, it must not stop the spans beside it
        return refusal(line, error, trace_id, day)


def _trace(
    span: otlp.Span, moment: datetime, span_attributes: dict[str, Any], resource: dict[str, Any], line: int
) -> Trace | Rejection:
    asked, answered = genai.asked(span_attributes, span.events), genai.answered(span_attributes, span.events)
    failed = span.failed or answered.failed
    strange = None if failed else asked.unreadable or answered.unreadable
    if not (asked.messages or answered.messages or failed or strange):
        return Rejection(line, Reason.NO_CONTENT, span.trace_id, moment.date().isoformat())
    start, end = _nanoseconds(span.start_time_unix_nano), _nanoseconds(span.end_time_unix_nano)
    everything = {**resource, **span_attributes}
    reasons = span_attributes.get("gen_ai.response.finish_reasons", span_attributes.get("ai.response.finishReason"))
    reason = cast(list[Any], reasons)[0] if isinstance(reasons, list) and reasons else reasons
    return Trace(
        trace_id=span.trace_id,
        observation_id=span.span_id,
        timestamp=moment,
        model=_text(span_attributes, "gen_ai.response.model", "gen_ai.request.model", "llm.model_name") or "",
        user_id=_text(everything, "user.id", "enduser.id"),
        session_id=_text(everything, "session.id", "gen_ai.conversation.id"),
        messages=chat.prompt(asked, answered),
        completion=chat.completion(answered),
        tool_calls=chat.tool_calls(answered),
        tools=chat.tools(asked),
        line=line,
        updated_at=_moment(end) if end else None,
        input_tokens=count(_text(span_attributes, *_INPUT_TOKENS)),
        output_tokens=count(_text(span_attributes, *_OUTPUT_TOKENS)),
        latency_s=(end - start) / 1e9 if end else None,
        level="ERROR" if failed else "DEFAULT",
        error=(span.status.message if span.status else "") or _text(span_attributes, "error.type"),
        finish_reason=answered.finish_reason or (reason if isinstance(reason, str) else None),
        metadata=metadata_text({k: v for k, v in everything.items() if not k.startswith(_PLACED)}),
        unreadable=strange,
        has_payload=asked.has_payload or answered.has_payload,
    )


def _is_call(span_attributes: dict[str, Any]) -> bool:
    operation = span_attributes.get("gen_ai.operation.name")
    if operation is not None:
        return operation in MODEL_CALLS
    if "openinference.span.kind" in span_attributes:
        return str(span_attributes["openinference.span.kind"]).upper() == "LLM"
    return "gen_ai.request.model" in span_attributes or "gen_ai.response.model" in span_attributes


def _text(span_attributes: dict[str, Any], *keys: str) -> str | None:
    return next((str(span_attributes[key]) for key in keys if span_attributes.get(key) not in (None, "")), None)


def _nanoseconds(value: int | str) -> int:
    try:
        return int(value)
    except ValueError as error:
        raise msgspec.ValidationError("a span's time is no number of nanoseconds") from error


def _moment(nanoseconds: int) -> datetime:
    if not 0 < nanoseconds < 2**63:
        raise msgspec.ValidationError("a span has no time")
    return EPOCH + timedelta(microseconds=nanoseconds // 1000)
