"""The usual rows of a Langfuse export, decoded by type into columns: a model call with plain text or chat messages as
input, one plain text or message as output, an object as metadata and times in UTC. Others are left to `langfuse`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from pipeline.traces.arrow import pc
from pipeline.traces.rows import PlainMessage, Rows, Trace
from pipeline.traces.sources.fields import MOST, marked, marks_of
from pipeline.traces.sources.langfuse import MODEL_CALL, Observation, add
from pipeline.traces.sources.lines import LineBatch
from pipeline.traces.sources.shapes import ODD

MAYBE_ODD = r"^[\s\x0b\x1c-\x1f\x85\p{Z}]*(?:[\"\[{<]|[A-Z][^(\s]*\(|[a-z_]+=|None|null|undefined)"
"""RE2 that matches whatever `shapes.ODD` does, and little else: most texts are cleared as a column."""

UTC_TIME = Annotated[datetime, msgspec.Meta(tz=False)]
Count = Annotated[int, msgspec.Meta(ge=0, lt=MOST)] | None


class LangfuseUsage(msgspec.Struct, gc=False, frozen=True):
    input: Count = None
    output: Count = None


class PlainRow(Observation, kw_only=True, gc=False):
    """An observation whose fields are of their usual types."""

    start_time: UTC_TIME
    end_time: UTC_TIME | None = None
    updated_at: UTC_TIME | None = None
    name: str | None = None
    input: str | None = None
    output: str | None = None
    metadata: msgspec.Raw = msgspec.Raw(b"{}")
    usage_details: LangfuseUsage = LangfuseUsage()
    latency: float | None = None


AS_IT_IS = {"observation_id": "id", "timestamp": "start_time", **{n: n for n in ("trace_id", "updated_at", "name")}}
OR_EMPTY = {"model": ("provided_model_name", ""), "level": ("level", "DEFAULT"), "error": ("status_message", None)} | {
    name: (name, None) for name in ("user_id", "session_id")
}


class PlainCall(NamedTuple):
    line: int
    text: bytes
    row: PlainRow
    messages: list[PlainMessage]
    answer: str


_row = msgspec.json.Decoder(PlainRow).decode
_observation = msgspec.json.Decoder(Observation).decode
_messages = msgspec.json.Decoder(list[PlainMessage]).decode
_message = msgspec.json.Decoder(PlainMessage).decode


def plain_calls(block: LineBatch) -> tuple[PlainCalls, list[tuple[int, bytes]]]:
    """The usual rows of a block, and its other lines with their numbers."""
    calls: list[PlainCall] = []
    others: list[tuple[int, bytes]] = []
    for line, text in block.lines():
        try:
            row = _row(text)
            asked, answered = row.input, row.output
            if row.type == MODEL_CALL and asked and answered and not (row.tool_definitions or row.tool_calls):
                messages = _messages(asked) if asked[0] == "[" else [PlainMessage("user", asked)]
                answer = _message(answered) if answered[0] == "{" else PlainMessage("assistant", answered)
                if answer.role == "assistant":
                    calls.append(PlainCall(line, text, row, messages, answer.content))
                    continue
        except (ValueError, RecursionError):
            pass
        others.append((line, text))
    odd = set(_odd([call.answer for call in calls]))
    ends = np.cumsum([len(call.messages) for call in calls])
    odd_texts = _odd([message.content for message in chain.from_iterable(call.messages for call in calls)])
    odd.update(np.searchsorted(ends, odd_texts, side="right").tolist())
    odd.update(place for place, call in enumerate(calls) if not _is_object(bytes(call.row.metadata)))
    others += [calls[place][:2] for place in odd]
    return PlainCalls([call for place, call in enumerate(calls) if place not in odd]), others


class PlainCalls(Sequence[Trace]):
    """Traces as columns, which are made one by one only for who asks for them so."""

    def __init__(self, calls: list[PlainCall]) -> None:
        self._calls = calls
        self._traces: list[Trace] | None = None

    def __len__(self) -> int:
        return len(self._calls)

    def __getitem__(self, index: Any) -> Any:
        if self._traces is None:
            rows = Rows(traces=list[Trace]())
            for call in self._calls:
                add(rows, call.line, partial(_observation, call.text))
            self._traces = list(rows.traces)
        return self._traces[index]

    def columns(self) -> dict[str, list[Any]] | None:
        """For the fields of `Trace` that are not at their default in every row, their values; metadata as UTF-8, and
        messages as PlainMessage. None once a trace was handed out: it may have been changed since."""
        if self._traces or not self._calls:
            return None
        lines, _, rows, messages, answers = map(list[Any], zip(*self._calls, strict=True))
        return {
            **{name: list(map(attrgetter(field), rows)) for name, field in AS_IT_IS.items()},
            **{name: [getattr(row, field) or empty for row in rows] for name, (field, empty) in OR_EMPTY.items()},
            **{"messages": messages, "completion": answers, "line": lines},
            **{f"{side}_tokens": [getattr(row.usage_details, side) for row in rows] for side in ("input", "output")},
            "latency_s": [
                r.latency if r.end_time is None else (r.end_time - r.start_time).total_seconds() for r in rows
            ],
            "metadata": list(map(_metadata, rows)),
        }


def _odd(texts: list[str]) -> list[int]:
    """Places of the texts that may be something else than plain text."""
    maybe = pc.match_substring_regex(pa.array(texts, pa.string()), MAYBE_ODD)
    places: list[int] = np.flatnonzero(maybe.to_numpy(zero_copy_only=False)).tolist()
    return [place for place in places if ODD(texts[place])]


def _is_object(metadata: bytes) -> bool:
    return metadata[:1] == b"{" and (metadata.isascii() or metadata.decode(errors="ignore").encode() == metadata)


def _metadata(row: PlainRow) -> msgspec.Raw:
    marks = marks_of(row)
    return msgspec.Raw(marked(str(row.metadata, "utf-8"), **marks).encode()) if any(marks.values()) else row.metadata
