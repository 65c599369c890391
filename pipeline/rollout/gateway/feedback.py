"""What users say of an answer: `POST /v1/feedback`, kept as OpenTelemetry evaluation results. An answer is named by the
id of its response or by its trace id; one user's newest word on it counts."""

import hashlib
import os
import re
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from pipeline.core import layout
from pipeline.core.storage import Store, append
from pipeline.rollout.gateway.asked import BadRequest
from pipeline.rollout.gateway.spans import (
    FLUSH_S,
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

LOOK_BACK_BYTES = 64 << 20
"""Of each span file, from its end: how far back an answer may lie."""
MOST_CHARS = 4_000
"""Of a comment."""
_TRACE = re.compile(rb'"trace_id":"([0-9a-f]{32})"')


class FeedbackRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body. `id`: of the response, or of its trace; each `name` counts for itself."""

    id: Annotated[str, Meta(min_length=1, max_length=256)]
    score: bool | Annotated[float, Meta(ge=0, le=1)] | Literal["up", "down"]
    """A thumb, or a number from 0, worst, to 1."""
    name: Annotated[str, Meta(min_length=1, max_length=64)] = "thumb"
    user: str = ""
    comment: Annotated[str, Meta(max_length=MOST_CHARS)] = ""


class FeedbackRecorder:
    """Takes feedback on what one model's gateway answered. `with_text`: whether comments are kept."""

    def __init__(
        self, store: Store, model_name: str, with_text: bool, pause: Callable[[float], None] = time.sleep
    ) -> None:
        """`pause`: lets so many seconds pass, while an answer's line is on its way."""
        self._served, self._folder = store.path(layout.served(model_name)), store.path(layout.feedback(model_name))
        self._with_text, self._lock, self._pause = with_text, threading.Lock(), pause

    def take(self, body: bytes | bytearray) -> str:
        """Record it; returns the trace id. Blocks for files. Raises BadRequest for what is no feedback."""
        try:
            given = msgspec.json.decode(body, type=FeedbackRequest)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadRequest(
                400, f"This is no feedback ({error}). Send id and score: up, down, or a number from 0 to 1."
            ) from error
        trace_id, now = self._trace_of(given.id), time.time()
        if not trace_id:  # its line may not be written yet
            self._pause(2 * FLUSH_S)
            trace_id = self._trace_of(given.id)
        if not trace_id:
            raise BadRequest(404, f"No answer here has the id {given.id[:64]!r}. Send the `id` of a response.")
        self._folder.mkdir(parents=True, exist_ok=True)
        day = datetime.fromtimestamp(now, UTC).date().isoformat()
        append(self._folder / f"{day}-{os.getpid()}.jsonl", _line(given, trace_id, self._with_text, now))
        return trace_id

    def _trace_of(self, id: str) -> str:
        named = msgspec.json.encode(id)
        marks = (b'"trace_id":' + named, b'{"key":"gen_ai.response.id","value":{"stringValue":' + named + b"}}")
        with self._lock:  # one search at a time
            for path in sorted(self._served.glob("*.jsonl"), key=lambda path: path.stat().st_mtime, reverse=True):
                left = LOOK_BACK_BYTES
                for line in lines_from_the_end(path, 0.0):
                    if named in line and any(mark in line for mark in marks) and (match := _TRACE.search(line)):
                        return match[1].decode()
                    left -= len(line)
                    if left < 0:
                        break
        return ""


def scores_since(folder: Path, since: float, meanings: Meanings) -> dict[str, list[dict[str, Any]]]:
    """By trace, what was said of answers since that time, each user's newest word: name and value."""
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


def _line(given: FeedbackRequest, trace_id: str, with_text: bool, now: float) -> bytes:
    """One OTLP export request with one record of a log. An erasure knows it by its trace."""
    value = float(given.score) if not isinstance(given.score, str) else float(given.score == "up")
    about = f"{trace_id}/{given.name}/{given.user}"
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
        "traceId": trace_id,
        "attributes": otlp_attributes(marks.items()),
    }
    moment = datetime.fromtimestamp(now, UTC).isoformat()
    export = {"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]}
    return msgspec.json.encode({RECORDED_AT: now, "trace_id": trace_id, "timestamp": moment, **export}) + b"\n"
