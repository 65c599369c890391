"""The usual rows of a Langfuse export, read a block at a time into columns: the hot loop of the traces stage.

A row is usual when it is a model call with plain text or chat messages as input, plain text or one plain message as
output, an object as metadata and times in UTC. Owns telling which are, and reads them to the same traces as
`langfuse.trace_of` does (a test draws rows for both). Refuses all others: the caller reads those by that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from itertools import chain
from operator import attrgetter
from typing import Annotated, Any, Literal, cast, overload

import msgspec
import numpy as np
import pyarrow as pa

from pipeline.traces.arrow import pc
from pipeline.traces.records import Reason
from pipeline.traces.rows import ColumnarTraces, Message, PlainMessage, Rejection, Trace
from pipeline.traces.sources.langfuse import MODEL_CALL, MOST, marked
from pipeline.traces.sources.shapes import ODD

MAYBE_ODD = r"^[\s\x0b\x1c-\x1f\x85\p{Z}]*(?:[\"\[{<]|[A-Z][^(\s]*\(|[a-z_]+=|None|null|undefined)"
"""RE2 that matches whatever `shapes.ODD` does, and little else: most texts are cleared as a column."""

UTC_TIME = Annotated[datetime, msgspec.Meta(tz=False)]
Count = Annotated[int, msgspec.Meta(ge=0, lt=MOST)] | None
Slow = Callable[[int, bytes], Trace | Rejection]
"""Reads a row of any shape."""


class UsageDetails(msgspec.Struct, gc=False):
    input: Count = None
    output: Count = None


class PlainCall(
    msgspec.Struct,
    gc=False,
    rename={
        "observation_id": "id",
        "timestamp": "start_time",
        "model": "provided_model_name",
        "error": "status_message",
        "latency_s": "latency",
        "usage": "usage_details",
    },
):
    """A row of observations, under the names that `Trace` has for its fields."""

    observation_id: str
    trace_id: str
    type: str
    timestamp: UTC_TIME
    end_time: UTC_TIME | None = None
    updated_at: UTC_TIME | None = None
    user_id: str | None = None
    session_id: str | None = None
    model: str | None = None
    level: str | None = None
    error: str | None = None
    input: str | None = None
    output: str | None = None
    metadata: msgspec.Raw = msgspec.Raw(b"{}")
    usage: UsageDetails | None = None
    version: Any = None
    release: Any = None
    environment: Any = None
    tags: Any = None
    latency_s: float | None = None


class PlainAnswer(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    role: Literal["assistant"]
    content: str


_row = msgspec.json.Decoder(PlainCall).decode
_messages = msgspec.json.Decoder(list[PlainMessage]).decode
_answer = msgspec.json.Decoder(PlainAnswer).decode
_NO_USAGE = UsageDetails()
_OPEN = ord("{")


def plain_calls(texts: Sequence[bytes], first: int, slow: Slow) -> tuple[ColumnarTraces, list[Rejection]]:
    """The model calls of a block of lines in their order, and its rejections. `first`: the number of the first line.

    What is not usual is handed to `slow`, which raises for no row.
    """
    plain, rejected = _Plain(), list[Rejection]()
    others: list[int] = []
    calls, nested, answers, lines = plain.calls.append, plain.messages.append, plain.answers.append, plain.lines.append
    for line, text in enumerate(texts, first):
        if not text or text.isspace():
            continue
        try:
            row = _row(text)
            if row.type != MODEL_CALL:
                rejected.append(Rejection(line, Reason.NOT_GENERATION, row.trace_id, row.timestamp.date().isoformat()))
                continue
            asked, answered = row.input, row.output
            if asked and answered:
                messages = _messages(asked) if asked[0] == "[" else [PlainMessage("user", asked)]
                if answered[0] == "{":
                    answered = _answer(answered).content
                calls(row)
                nested(messages)
                answers(answered)
                lines(line)
                continue
        except (ValueError, RecursionError):
            pass
        others.append(line)
    strange = plain.strange()
    others = sorted([*others, *(plain.lines[place] for place in strange)])
    plain.leave_out(strange)
    read = [slow(line, texts[line - first]) for line in others]
    rejected += [row for row in read if isinstance(row, Rejection)]
    rejected.sort(key=attrgetter("line"))
    return PlainCalls(plain, [row for row in read if isinstance(row, Trace)]), rejected


class _Plain:
    """Usual rows, their messages, the text of their answers and their lines."""

    def __init__(self) -> None:
        self.calls: list[PlainCall] = []
        self.messages: list[list[PlainMessage]] = []
        self.answers: list[str] = []
        self.lines: list[int] = []

    def strange(self) -> list[int]:
        """Places of the rows that are not usual after all: a text that may be something else, metadata that is no
        object or no UTF-8."""
        if not self.calls:
            return []
        places = set(_odd(self.answers))
        ends = np.cumsum(list(map(len, self.messages)))
        odd = _odd([message.content for message in chain.from_iterable(self.messages)])
        places.update(np.searchsorted(ends, odd, side="right").tolist())
        metadata = [call.metadata for call in self.calls]
        whole = b"".join(metadata)
        starts = np.cumsum([0, *map(len, metadata)])[:-1]
        places.update(np.flatnonzero(np.frombuffer(whole, np.uint8)[starts] != _OPEN).tolist())
        if not whole.isascii():
            places.update(place for place, each in enumerate(metadata) if not _is_utf8(bytes(each)))
        return sorted(places)

    def leave_out(self, places: Sequence[int]) -> None:
        if places:
            left_out = set(places)
            kept = [place for place in range(len(self.calls)) if place not in left_out]
            self.calls = [self.calls[place] for place in kept]
            self.messages = [self.messages[place] for place in kept]
            self.answers = [self.answers[place] for place in kept]
            self.lines = [self.lines[place] for place in kept]


class PlainCalls(ColumnarTraces):
    """The model calls of a block, in the order of their lines."""

    def __init__(self, plain: _Plain, others: Sequence[Trace]) -> None:
        self._plain, self._others = plain, others
        self._traces: list[Trace] | None = None
        lines = np.array([*plain.lines, *(trace.line for trace in others)], np.int64)
        self._order = np.argsort(lines, kind="stable").tolist() if others else None

    def __len__(self) -> int:
        return len(self._plain.calls) + len(self._others)

    @overload
    def __getitem__(self, index: int) -> Trace: ...
    @overload
    def __getitem__(self, index: slice) -> list[Trace]: ...
    def __getitem__(self, index: int | slice) -> Trace | list[Trace]:
        if self._traces is None:
            plain = self._plain
            usual = map(_trace, plain.calls, plain.messages, plain.answers, plain.lines)
            self._traces = self._ordered([*usual, *self._others])
        return self._traces[index]

    def columns(self) -> dict[str, list[Any]] | None:
        if self._traces is not None:
            return None
        plain, others = self._plain, self._others
        usages = [call.usage or _NO_USAGE for call in plain.calls]
        usages += [UsageDetails(trace.input_tokens, trace.output_tokens) for trace in others]
        rows: list[Any] = self._ordered([*plain.calls, *others])
        usages = self._ordered(usages)
        values: dict[str, list[Any]] = {
            name: list(map(attrgetter(name), rows))
            for name in ("trace_id", "observation_id", "timestamp", "updated_at")
        }
        values |= {name: self._sparse(name) for name in ("finish_reason", "tool_calls", "tools", "unreadable")}
        return values | {
            "model": [row.model or "" for row in rows],
            "user_id": [row.user_id or None for row in rows],
            "session_id": [row.session_id or None for row in rows],
            "level": [row.level or "DEFAULT" for row in rows],
            "error": [row.error or None for row in rows],
            "messages": self._ordered([*plain.messages, *(_messages_of(trace) for trace in others)]),
            "completion": self._ordered([*plain.answers, *(trace.completion for trace in others)]),
            "line": self._ordered([*plain.lines, *(trace.line for trace in others)]),
            "input_tokens": [usage.input for usage in usages],
            "output_tokens": [usage.output for usage in usages],
            "latency_s": self._ordered([*map(_latency_s, plain.calls), *(trace.latency_s for trace in others)]),
            "metadata": self._ordered([*map(_metadata, plain.calls), *map(_raw_metadata, others)]),
            "has_payload": self._sparse("has_payload", False),
            "feedback": self._sparse("feedback", []),
        }

    def _ordered(self, values: list[Any]) -> list[Any]:
        return values if self._order is None else list(map(values.__getitem__, self._order))

    def _sparse(self, name: str, plain: Any = None) -> list[Any]:
        """A field that usual rows do not have."""
        return self._ordered([plain] * len(self._plain.calls) + [getattr(trace, name) for trace in self._others])


def _odd(texts: list[str]) -> list[int]:
    """Places of the texts that may be something else than plain text."""
    maybe = pc.match_substring_regex(pa.array(texts, pa.string()), MAYBE_ODD)
    places: list[int] = np.flatnonzero(maybe.to_numpy(zero_copy_only=False)).tolist()
    return [place for place in places if ODD(texts[place])]


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _latency_s(call: PlainCall) -> float | None:
    end = call.end_time
    return call.latency_s if end is None else (end - call.timestamp).total_seconds()


def _metadata(call: PlainCall) -> msgspec.Raw:
    if not (call.version or call.release or call.tags):
        return call.metadata
    marks = {"version": call.version, "release": call.release, "environment": call.environment, "tags": call.tags}
    return msgspec.Raw(marked(str(call.metadata, "utf-8"), **marks).encode())


def _messages_of(trace: Trace) -> Sequence[Message | PlainMessage]:
    """As usual rows have them, where the trace's are of role and text alone: columns of one kind are made faster."""
    if any(message.keys() != {"role", "content"} for message in trace.messages):
        return trace.messages
    return [PlainMessage(cast(Any, message["role"]), message["content"]) for message in trace.messages]


def _raw_metadata(trace: Trace) -> msgspec.Raw:
    return msgspec.Raw(trace.metadata.encode())


def _trace(call: PlainCall, messages: Iterable[PlainMessage], answer: str, line: int) -> Trace:
    usage = call.usage or _NO_USAGE
    asked: list[Message] = [{"role": message.role, "content": message.content} for message in messages]
    return Trace(
        call.trace_id,
        call.observation_id,
        call.timestamp,
        call.model or "",
        call.user_id or None,
        call.session_id or None,
        asked,
        answer,
        line,
        call.updated_at,
        usage.input,
        usage.output,
        _latency_s(call),
        call.level or "DEFAULT",
        call.error or None,
        None,
        str(_metadata(call), "utf-8"),
    )
