"""Evaluation results of OpenTelemetry's GenAI conventions (`gen_ai.evaluation.result`), records or events of a span, as
scores of a trace. Written from the published conventions."""

from __future__ import annotations

import hashlib
import math
from contextlib import suppress
from datetime import timedelta
from typing import Any

import msgspec

from pipeline.core import layout
from pipeline.traces.rows import Score
from pipeline.traces.sources import otlp
from pipeline.traces.sources.moments import EPOCH

RESULT = "gen_ai.evaluation.result"
NAME, VALUE = "gen_ai.evaluation.name", "gen_ai.evaluation.score.value"
LABEL, EXPLANATION = "gen_ai.evaluation.score.label", "gen_ai.evaluation.explanation"
SOURCE, ID = "feedback.source", "feedback.id"
"""Who scored, `user` or `EVAL`, and the score's own id: of two with one id the newer counts."""


def holds_scores(name: str) -> bool:
    """Whether a file of a source, by its path below the root, is one of results: its folder says so."""
    return layout.EVALUATION_RESULTS in name.split("/")[:-1]


def of_span(span: otlp.Span, place: int) -> list[Score]:
    """Of the results that are events of a span; one that cannot be read is none."""
    scores: list[Score] = []
    for event in span.events:
        at, marks = event.time_unix_nano, event.attributes
        record = otlp.LogRecord(span.trace_id, span.span_id, at, event_name=event.name, attributes=marks)
        with suppress(msgspec.ValidationError):
            scores += [score] if (score := score_of(record, place)) is not None else []
    return scores


def score_of(value: Any, place: int) -> Score | None:
    """None for a record that is no result, or that names no trace. Raises msgspec.ValidationError for one that can't be
    read. `place`: of the record in its file."""
    record = value if isinstance(value, otlp.LogRecord) else msgspec.convert(value, otlp.LogRecord)
    marks = otlp.attributes(record.attributes)
    if (record.event_name or marks.get("event.name")) != RESULT or not record.trace_id:
        return None
    name, number, at = marks.get(NAME), marks.get(VALUE), otlp.nanoseconds(record.time_unix_nano)
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
