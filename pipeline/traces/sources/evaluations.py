"""Evaluation results of OpenTelemetry's GenAI conventions (`gen_ai.evaluation.result`) as scores of a trace.

Written from the published conventions. They do not say whether a person or a program scored: `feedback.source` does,
and without it a score is a program's, which the labels do not take for a user's.
"""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Any

import msgspec

from pipeline import layout
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


def score_of(value: Any, place: int) -> Score | None:
    """None for a record that is no result, or that names no trace. Raises msgspec.ValidationError for one that can't be
    read. `place`: of the record in its file."""
    record = msgspec.convert(value, otlp.LogRecord)
    marks = otlp.attributes(record.attributes)
    if (record.event_name or marks.get("event.name")) != RESULT or not record.trace_id:
        return None
    name, number, at = marks.get(NAME), marks.get(VALUE), otlp.nanoseconds(record.time_unix_nano)
    if not isinstance(name, str) or not name:
        raise msgspec.ValidationError(f"an evaluation has no {NAME}")
    about = f"{record.trace_id}/{record.span_id}/{name}/{at}/{place}"
    known = isinstance(number, int | float) and not isinstance(number, bool) and 0 <= number <= 1
    return Score(
        id=str(marks.get(ID) or hashlib.sha256(about.encode()).hexdigest()[:32]),
        trace_id=record.trace_id,
        observation_id=record.span_id or None,
        name=name,
        value=float(number) if known and number is not None else None,
        source=str(marks.get(SOURCE) or "EVAL"),
        updated_at=EPOCH + timedelta(microseconds=at // 1000) if 0 < at < 2**63 else None,
    )
