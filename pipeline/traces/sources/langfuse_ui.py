"""Reader of traces downloaded from the Langfuse UI: one JSON file a trace, `{trace, observations}`; made on real ones.

Owns the UI's camelCase. Its `latency` is in seconds or in milliseconds, by version, and is not read: the two times are.
Text, model and usage come from the GENERATION observations; user, session and scores from the trace. What an
observation's metadata says wins over the trace's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from pipeline.traces.records import Reason
from pipeline.traces.rows import Rejection, Rows
from pipeline.traces.sources.compression import Broken, PartLimits
from pipeline.traces.sources.files import WHOLE, Files
from pipeline.traces.sources.langfuse import Observation, ScoreRow, add, metadata_of
from pipeline.traces.sources.lines import refusal
from pipeline.traces.sources.moments import day_of
from pipeline.traces.sources.protocol import Digest, SourcePart


class UiTrace(msgspec.Struct, rename="camel"):
    id: str
    timestamp: Any
    user_id: str | None = None
    session_id: str | None = None
    metadata: Any = None
    version: Any = None
    release: Any = None
    environment: Any = None
    tags: Any = None
    scores: list[Any] = []


class UiFile(msgspec.Struct):
    trace: UiTrace
    observations: list[Any]


class LangfuseUi:
    """A row's line is its place in `observations`, from 1. A file that is no such trace counts as one rejected row."""

    def __init__(self, uri: str, limits: PartLimits | None = None) -> None:
        self.label = uri
        self._files = Files(uri, limits)

    def parts(self) -> list[SourcePart]:
        source_parts = self._files.parts(strays=True)
        if not source_parts:
            raise ValueError(
                f"{self.label} has no JSON files. Point traces.source.uri to the traces downloaded from Langfuse."
            )
        return source_parts

    def rows(self, part: SourcePart, digest: Digest) -> Iterator[Rows]:
        try:
            content = self._files.content(part, digest)
        except Broken as error:
            yield Rows(rejected=[Rejection(1, error.reason, detail=str(error))])
            return
        if content is None:
            yield Rows(rejected=[Rejection(1, Reason.TOO_LONG, detail=f"a file of over {WHOLE} bytes")])
        else:
            yield _rows(content)


def _rows(content: bytes) -> Rows:
    rows = Rows()
    try:
        ui_file = msgspec.json.decode(content, type=UiFile)
        metadata = metadata_of(ui_file.trace.metadata)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        rows.rejected.append(refusal(1, error))
        return rows
    trace = ui_file.trace
    if not ui_file.observations:
        rows.rejected.append(Rejection(1, Reason.NOT_GENERATION, trace.id, day_of(trace.timestamp)))
    for number, value in enumerate(ui_file.observations, 1):
        add(rows, number, lambda value=value: _observation(value, trace, metadata))
    for number, value in enumerate(trace.scores, 1):
        add(rows, number, lambda value=value: _score_row(value, trace.id))
    return rows


def _observation(value: Any, trace: UiTrace, metadata: dict[str, Any]) -> Observation:
    row = msgspec.convert(value, dict[str, Any])
    return msgspec.convert(
        {
            "id": row.get("id"),
            "trace_id": row.get("traceId", trace.id),
            "type": row.get("type"),
            "name": row.get("name"),
            "start_time": row.get("startTime"),
            "end_time": row.get("endTime"),
            "updated_at": row.get("updatedAt"),
            "user_id": trace.user_id,
            "session_id": trace.session_id,
            "provided_model_name": row.get("model"),
            "level": row.get("level"),
            "status_message": row.get("statusMessage"),
            "input": row.get("input"),
            "output": row.get("output"),
            "metadata": {**metadata, **metadata_of(row.get("metadata"))},
            "usage_details": row.get("usageDetails"),
            "version": row.get("version") or trace.version,
            "release": trace.release,
            "environment": row.get("environment") or trace.environment,
            "tags": trace.tags,
        },
        Observation,
    )


def _score_row(value: Any, trace_id: str) -> ScoreRow:
    row = msgspec.convert(value, dict[str, Any])
    snake = {name: row[camel] for name, camel in _SCORE_FIELDS.items() if camel in row}
    return msgspec.convert({"trace_id": trace_id, **snake}, ScoreRow)


_SCORE_FIELDS = {
    "id": "id",
    "observation_id": "observationId",
    "name": "name",
    "value": "value",
    "string_value": "stringValue",
    "data_type": "dataType",
    "source": "source",
    "updated_at": "updatedAt",
}
