"""Reader of traces downloaded from the Langfuse UI: one JSON file a trace, `{trace, observations}`.

Owns the UI's camelCase and its units (an observation's latency is in milliseconds). Text, model and usage come from
the GENERATION observations; user, session, scores and consent from the trace, whose metadata wins over theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from pipeline.traces.files import SourceFile, list_files, named_day
from pipeline.traces.langfuse import Observation, ScoreRow, add, metadata_of, utc
from pipeline.traces.records import UNKNOWN_DAY, FileRows, Reason, Rejection


class UiTrace(msgspec.Struct, rename="camel"):
    id: str
    timestamp: str
    user_id: str | None = None
    session_id: str | None = None
    metadata: Any = None
    scores: list[Any] = []


class UiFile(msgspec.Struct):
    trace: UiTrace
    observations: list[Any]


def read_ui(uri: str) -> Iterator[FileRows]:
    """One file of rows per downloaded trace; a row's line is its place in `observations`, from 1.

    A file that is not such a trace, or one without any observation, counts as one rejected row.
    Raises ValueError when the source is missing or cannot be read.
    """
    files = list_files(uri, strays=True)
    if not files:
        raise ValueError(f"{uri} has no JSON files. Point traces.source.uri to the traces downloaded from Langfuse.")
    for file in files:
        yield _read(file)


def _read(file: SourceFile) -> FileRows:
    rows = FileRows(file.name, named_day(file.name))
    content = file.content()
    rows.sha256 = file.sha256
    day = rows.named_day or UNKNOWN_DAY
    try:
        found = msgspec.json.decode(content, type=UiFile)
        day = utc(found.trace.timestamp).date().isoformat()
        metadata = metadata_of(found.trace.metadata)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        bad_json = isinstance(error, msgspec.DecodeError) and not isinstance(error, msgspec.ValidationError)
        reason = Reason.MALFORMED if bad_json or isinstance(error, RecursionError) else Reason.SCHEMA
        rows.rejected.append(Rejection(None, reason, file.name, 1, day))
        return rows
    if not found.observations:
        rows.rejected.append(Rejection(found.trace.id, Reason.NOT_GENERATION, file.name, 1, day))
    for number, value in enumerate(found.observations, 1):
        add(rows, number, lambda value=value: _observation(value, found.trace, metadata))
    for number, value in enumerate(found.trace.scores, 1):
        add(rows, number, lambda value=value: _score_row(value, found.trace.id))
    return rows


def _observation(value: Any, trace: UiTrace, metadata: dict[str, Any]) -> Observation:
    row = msgspec.convert(value, dict[str, Any])
    latency_ms = row.get("latency")
    return msgspec.convert(
        {
            "id": row.get("id"),
            "trace_id": row.get("traceId", trace.id),
            "type": row.get("type"),
            "start_time": row.get("startTime"),
            "updated_at": row.get("updatedAt"),
            "user_id": trace.user_id,
            "session_id": trace.session_id,
            "provided_model_name": row.get("model"),
            "level": row.get("level"),
            "status_message": row.get("statusMessage"),
            "input": row.get("input"),
            "output": row.get("output"),
            "metadata": {**metadata_of(row.get("metadata")), **metadata},
            "usage_details": row.get("usageDetails"),
            "latency": None if latency_ms is None else float(latency_ms) / 1000,
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
