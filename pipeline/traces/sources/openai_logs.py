"""Reader of OpenAI chat-completion logs, one call a line: `{request, response, ...}`, a batch's `{custom_id, body,
response: {body}}`, a stored completion. Written from the published API reference, not from real logs."""

import hashlib
from collections.abc import Iterator
from typing import Any

import msgspec

from pipeline.traces.records import Reason
from pipeline.traces.rows import Rejection, Rows, Trace
from pipeline.traces.sources import chat
from pipeline.traces.sources.fields import count, day_of, latency_s, metadata_of, metadata_text, put, said, seconds, utc
from pipeline.traces.sources.files import FilesSource
from pipeline.traces.sources.lines import blocks, refusal
from pipeline.traces.sources.parts import dumped
from pipeline.traces.sources.protocol import Digest, SourcePart
from pipeline.traces.sources.shapes import Json, decoded, object_of

TIMES = ("created", "created_at", "timestamp", "time", "start_time")
IDS = ("request_id", "id")
"""A batch's `custom_id` is none: the next batch has the same ones."""
STARTS, ENDS = ("start_time", "startTime", "started_at"), ("end_time", "endTime", "completed_at")
USERS = ("user", "user_id", "safety_identifier")
MARKS = ("version", "release", "environment", "tags")
"""What says who answered, where the line is the request itself."""
SESSIONS = ("session_id", "conversation_id")
ELSEWHERE = ("previous_response_id", "conversation", "suffix", "echo")
"""Fields of a request whose prompt is not all in it, or whose answer is no text after the prompt: a conversation that
the provider keeps, the end of a text whose middle is asked for, a prompt that the answer repeats."""
_PLACED = frozenset(
    ("request", "response", "body", "metadata", "messages", "input", "instructions", "choices", "output", "usage")
) | {"object", "method", "url", "error", "status_code", "tools", "custom_id", *TIMES, *IDS, *USERS, *SESSIONS}
"""Keys of a line that are not metadata."""


class OpenAiLogs(FilesSource):
    nothing = "JSON lines. Point traces.source.uri to the folder of the logs."

    def rows(self, part: SourcePart, digest: Digest) -> Iterator[Rows]:
        for block in blocks(self._files.chunks(part, digest), part.name):
            rows = Rows()
            for line, text in block.lines():
                put(rows, _row(text, line))
            rows.rejected += block.rejected
            yield rows


def _row(text: bytes, line: int) -> Trace | Rejection:
    trace_id = day = None
    try:
        row = msgspec.json.decode(text, type=Json)
        envelope = _object(row.get("request", row.get("body")))
        request = _object(envelope.get("body")) or envelope or row
        envelope = _object(row["response"]) if "response" in row else row
        response = _object(envelope.get("body")) if "status_code" in envelope and "body" in envelope else envelope
        trace_id = _identity(row, response, text)
        day = day_of(_first((response, row, request), TIMES))
        return _trace(row, request, response, trace_id, line)
    except Exception as error:  # the boundary of one row: it must not stop the others
        return refusal(line, error, trace_id, day)


def _trace(row: Json, request: Json, response: Json, trace_id: str, line: int) -> Trace | Rejection:
    moment = utc(_first((response, row, request), TIMES))
    asked = chat.joined(*_asked(request))
    content = next(({key: response[key]} for key in ("choices", "output") if key in response), None)
    answered = chat.parse(content, "assistant")
    failure = response.get("error") or row.get("error")
    status = row.get("status_code", object_of(row.get("response")).get("status_code"))
    failed = bool(failure) or (count(status) or 0) >= 400 or answered.failed
    unread = asked.unreadable or answered.unreadable
    if not (failed or unread) and (not asked.messages or content is None):
        missing = "response" if content is None else "request"
        return Rejection(line, Reason.NO_CONTENT, trace_id, moment.date().isoformat(), f"no messages of the {missing}")
    usage, message = _object(response.get("usage")), object_of(failure).get("message", failure)
    ms = seconds(row.get("latency_ms", row.get("duration_ms")))
    stated = seconds(row.get("latency_s")) if ms is None else ms / 1000
    user, session = _first((request, row), USERS), _first((row, request), SESSIONS)
    trace = Trace(
        trace_id=trace_id,
        observation_id=trace_id,
        timestamp=moment,
        model=str(response.get("model") or request.get("model") or ""),
        user_id=None if user is None else str(user),
        session_id=None if session is None else str(session),
        messages=[],
        completion="",
        line=line,
        input_tokens=count(usage.get("prompt_tokens", usage.get("input_tokens"))),
        output_tokens=count(usage.get("completion_tokens", usage.get("output_tokens"))),
        latency_s=latency_s(_first((row,), STARTS), _first((row,), ENDS), stated),
        error=(message if isinstance(message, str) else dumped(message)) if message else None,
        finish_reason=_object(response.get("incomplete_details")).get("reason")
        or (response.get("status") if response.get("object") == "response" else None),
        metadata=_metadata(row, request, response),
    )
    return said(trace, asked, answered, failed)


def _identity(row: Json, response: Json, text: bytes) -> str:
    """The line's own id; else that of the response and the content, for ids of local servers come again."""
    own = None if row is response else _first((row,), IDS)
    if own is not None:
        return str(own)
    content, answered = hashlib.sha256(text).hexdigest()[:32], _first((response,), ("id",))
    return content if answered is None else f"{answered}-{content[:16]}"


def _object(value: Any) -> Json:
    """An object, or one in a string; {} for null. Raises msgspec.ValidationError for anything else."""
    parsed = decoded(value)
    return msgspec.convert({} if parsed is None else parsed, Json)


def _first(places: tuple[Json, ...], keys: tuple[str, ...]) -> Any:
    values = (place[key] for place in places for key in keys if place.get(key) not in (None, ""))
    return next(values, None)


def _asked(request: Json) -> tuple[chat.Chat, chat.Chat]:
    """Instructions and input of a request: of chat, of responses, or of completions."""
    if elsewhere := next((key for key in ELSEWHERE if request.get(key)), None):
        return chat.Chat([], unreadable=f"input: a request with {elsewhere}"), chat.Chat([])
    places = ("messages", "input", "prompt")
    offered = {key: request[key] for key in ("tools", "functions") if request.get(key)}
    content = next(({key: request[key], **offered} for key in places if request.get(key) not in (None, "", [])), None)
    return chat.parse(request.get("instructions") or request.get("system"), "system"), chat.parse(content, "user")


def _metadata(row: Json, request: Json, response: Json) -> str:
    """What is said of the call, from the least to the most deliberate place."""
    fields = {} if row is request or row is response else {k: v for k, v in row.items() if k not in _PLACED}
    fields = fields or {mark: row[mark] for mark in MARKS if row.get(mark)}
    for place in (response, request, row):
        fields |= metadata_of(place.get("metadata"))
    return metadata_text(fields)
