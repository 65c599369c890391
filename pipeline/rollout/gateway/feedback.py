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
from pipeline.core.storage import Store
from pipeline.core.unfinished import append
from pipeline.rollout.gateway.asked import BadRequest
from pipeline.rollout.gateway.span_files import LATE_S, RecordedExport, lines_from_the_end
from pipeline.rollout.gateway.spans import FLUSH_S, RECORDED_AT, otlp_attributes
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
        given = _read(body)
        trace_id, now = self._awaited_trace(given.id), time.time()
        if not trace_id:
            raise BadRequest(404, f"No answer here has the id {given.id[:64]!r}. Send the `id` of a response.")
        with self._lock:
            day = datetime.fromtimestamp(now, UTC).date().isoformat()
            self._folder.mkdir(parents=True, exist_ok=True)
            line = _line(given, trace_id, self._with_text, now)
            append(self._folder / f"{day}-{os.getpid()}.jsonl", line)
        return trace_id

    def _awaited_trace(self, id: str) -> str:
        """By its line, which may not be written yet; without holding the lock."""
        with self._lock:  # one search at a time
            trace_id = self._trace_of(id)
        if trace_id:
            return trace_id
        self._pause(2 * FLUSH_S)
        with self._lock:
            return self._trace_of(id)

    def _trace_of(self, id: str) -> str:
        named = msgspec.json.encode(id)
        marks = (b'"trace_id":' + named, b'{"key":"gen_ai.response.id","value":{"stringValue":' + named + b"}}")
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


def _read(body: bytes | bytearray) -> FeedbackRequest:
    try:
        return msgspec.json.decode(body, type=FeedbackRequest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(
            400, f"This is no feedback ({error}). Send id and score: up, down, or a number from 0 to 1."
        ) from error


def _line(given: FeedbackRequest, trace_id: str, with_text: bool, now: float) -> bytes:
    """One OTLP export request with one record of a log. An erasure knows it by its trace."""
    value = float(given.score) if not isinstance(given.score, str) else float(given.score == "up")
    about = f"{trace_id}/{given.name}/{given.user}"
    marks: list[tuple[str, Any]] = [
        (NAME, given.name),
        (VALUE, value),
        (LABEL, "up" if value == 1 else "down" if value == 0 else ""),
        (SOURCE, "user"),
        (ID, hashlib.sha256(about.encode()).hexdigest()[:32]),
    ]
    if given.comment and with_text:
        marks.append((EXPLANATION, given.comment))
    record = {
        "timeUnixNano": str(int(now * 1e9)),
        "eventName": RESULT,
        "traceId": trace_id,
        "attributes": otlp_attributes([mark for mark in marks if mark[1] != ""]),
    }
    moment = datetime.fromtimestamp(now, UTC).isoformat()
    export = {"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]}
    return msgspec.json.encode({RECORDED_AT: now, "trace_id": trace_id, "timestamp": moment, **export}) + b"\n"
