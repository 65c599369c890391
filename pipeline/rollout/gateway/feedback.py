"""What users say of an answer: `POST /v1/feedback`, kept as OpenTelemetry evaluation results. An answer has one vote of
each name, the newest: the answer's id, which only who was answered knows, is the right to vote."""

import hashlib
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from pipeline.core import layout
from pipeline.core.storage import Store, append
from pipeline.rollout.gateway.asked import BadRequest
from pipeline.rollout.gateway.spans import (
    LATE_S,
    RECORDED_AT,
    RecordedExport,
    lines_from_the_end,
    otlp_attributes,
)
from pipeline.traces.rows import Score
from pipeline.traces.scores import Meanings
from pipeline.traces.sources import otlp
from pipeline.traces.sources.fields import EPOCH
from pipeline.traces.sources.otlp import EXPLANATION, ID, LABEL, NAME, RESULT, SOURCE, VALUE, score_of

MOST_CHARS = 4_000
"""Of a comment."""


class FeedbackRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body. `id`: of the answer's trace, its header `x-request-id`; each `name` counts for itself."""

    id: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    score: bool | Annotated[float, Meta(ge=0, le=1)] | Literal["up", "down"]
    """A thumb, or a number from 0, worst, to 1."""
    name: Annotated[str, Meta(min_length=1, max_length=64)] = "thumb"
    comment: Annotated[str, Meta(max_length=MOST_CHARS)] = ""


def record_feedback(store: Store, model_name: str, body: bytes | bytearray, with_text: bool) -> str:
    """Keep feedback on what one model's gateway answered; returns the trace id. Blocks for files. `with_text`: whether
    comments are kept. Raises BadRequest for what is no feedback, OSError where the disk does not take it."""
    try:
        given = msgspec.json.decode(body, type=FeedbackRequest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        says = "Send the answer's x-request-id as id, and score: up, down, or a number from 0 to 1."
        raise BadRequest(400, f"This is no feedback ({error}). {says}") from error
    folder, now = store.path(layout.feedback(model_name)), time.time()
    day = datetime.fromtimestamp(now, UTC).date().isoformat()
    append(folder / f"{day}-{os.getpid()}.jsonl", _line(given, with_text, now))
    return given.id


def scores_since(folder: Path, since: float, meanings: Meanings) -> dict[str, list[dict[str, Any]]]:
    """By trace, what was said of answers since that time, the newest word of each name: name and value."""
    newest: dict[str, Score] = {}
    for path in sorted(folder.glob("*.jsonl")):
        if path.stat().st_mtime < since - LATE_S:
            continue
        for place, line in enumerate(lines_from_the_end(path, since)):
            for score in _scores(line, place):
                before = newest.setdefault(score.id, score)
                newest[score.id] = max(before, score, key=lambda each: each.updated_at or EPOCH)
    by_trace: dict[str, list[dict[str, Any]]] = {}
    for score in newest.values():
        by_trace.setdefault(score.trace_id, []).append({"name": score.name, "value": meanings.of(score).value})
    return by_trace


def _scores(line: bytes, place: int) -> list[Score]:
    try:
        export = msgspec.json.decode(line, type=RecordedExport)
        scores = [score_of(each.record, place) for each in otlp.records(export) if each.is_log]
    except (msgspec.DecodeError, ValueError, RecursionError):
        return []
    return [score for score in scores if score is not None]


def _line(given: FeedbackRequest, with_text: bool, now: float) -> bytes:
    """One OTLP export request with one record of a log. An erasure knows it by its trace."""
    value = float(given.score) if not isinstance(given.score, str) else float(given.score == "up")
    about = f"{given.id}/{given.name}"
    marks: dict[str, Any] = {
        NAME: given.name,
        VALUE: value,
        LABEL: {1.0: "up", 0.0: "down"}.get(value),
        SOURCE: "user",
        ID: hashlib.sha256(about.encode()).hexdigest()[:32],
        EXPLANATION: (given.comment or None) if with_text else None,
    }
    record = {
        "timeUnixNano": str(int(now * 1e9)),
        "eventName": RESULT,
        "traceId": given.id,
        "attributes": otlp_attributes(marks.items()),
    }
    moment = datetime.fromtimestamp(now, UTC).isoformat()
    export = {"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]}
    return msgspec.json.encode({RECORDED_AT: now, "trace_id": given.id, "timestamp": moment, **export}) + b"\n"
