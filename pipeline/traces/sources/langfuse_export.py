"""Readers of Langfuse's files: the blob-storage export (JSON, CSV or Parquet; written from the published field lists),
and traces downloaded from the user interface (made on real ones)."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec

from pipeline.traces.records import Reason
from pipeline.traces.rows import Rejection, Rows
from pipeline.traces.sources.fields import day_of, metadata_of
from pipeline.traces.sources.files import CSV, JSON, PARQUET, FilesSource, bare_name
from pipeline.traces.sources.langfuse import KINDS, Observation, ScoreRow, TraceRow, add, row_of
from pipeline.traces.sources.langfuse_fast import plain_calls
from pipeline.traces.sources.lines import RecordBatch, blocks, csv_records, refusal
from pipeline.traces.sources.parquet import records
from pipeline.traces.sources.protocol import Digest, SourcePart

FORMATS = (*JSON, *PARQUET, *CSV)
Kind = type[Observation] | type[ScoreRow] | type[TraceRow]


class LangfuseExport(FilesSource):
    """`observations_v2/` and `scores/`, or the older layout, where `traces/` has user, session and metadata."""

    def parts(self) -> list[SourcePart]:
        source_parts = self._files.parts("observations_v2", suffixes=FORMATS)
        if not source_parts:  # never both: an export that changed its layout holds the same calls twice
            source_parts = self._files.parts("observations", suffixes=FORMATS)
            source_parts += self._files.parts("traces", holds="attributes", suffixes=FORMATS) if source_parts else []
        if not source_parts:
            raise ValueError(
                f"{self.label} has no observations_v2/ (or observations/) with JSON lines, CSV or Parquet in it. "
                "Point traces.source.uri to the folder above observations_v2/ of a Langfuse blob-storage export."
            )
        return sorted(source_parts + self._files.parts("scores", holds="scores", suffixes=FORMATS))

    def rows(self, part: SourcePart, digest: Digest) -> Iterator[Rows]:
        kind = KINDS[part.holds]
        if part.name.endswith(PARQUET):
            return _of_records(kind, records(self._files, part, digest, kind.__struct_fields__))
        chunks = self._files.chunks(part, digest)
        if bare_name(part.name).endswith(CSV):
            return _of_records(kind, csv_records(chunks))
        return _of_lines(kind, chunks, part.name)


def _of_records(kind: Kind, batches: Iterator[RecordBatch]) -> Iterator[Rows]:
    for batch in batches:
        rows = Rows(rejected=batch.rejected)
        for line, record in batch.records:
            add(rows, line, partial(msgspec.convert, record, kind))
        yield rows


def _of_lines(kind: Kind, chunks: Iterator[bytes], name: str) -> Iterator[Rows]:
    decode = msgspec.json.Decoder(kind).decode
    for block in blocks(chunks, name):
        rows, lines = Rows(), list(block.lines())
        if kind is Observation:
            usual, lines = plain_calls(block)
            if len(usual):
                yield Rows(traces=usual)
        for line, text in lines:
            add(rows, line, partial(decode, text))
        rows.rejected += block.rejected
        yield rows


class UiFile(msgspec.Struct):
    trace: dict[str, Any]
    observations: list[Any]


class LangfuseUi(FilesSource):
    """One JSON file a trace, `{trace, observations}`, of which user, session and scores are the trace's. A row's line
    is its place in `observations`, from 1. `latency`, whose unit depends on the version, is not read: the two times
    are."""

    nothing = "JSON files. Point traces.source.uri to the traces downloaded from Langfuse."
    strays = True

    def rows(self, part: SourcePart, digest: Digest) -> Iterator[Rows]:
        for block in blocks(self._files.chunks(part, digest), part.name):
            yield from (_of_ui(text) for _, text in block.lines())
            yield Rows(rejected=block.rejected)


def _of_ui(content: bytes) -> Rows:
    rows = Rows()
    try:
        ui_file = msgspec.json.decode(content, type=UiFile)
        given = {"timestamp": None, "scores": [], **ui_file.trace}
        trace, scores = msgspec.convert(row_of(given, TraceRow), TraceRow), msgspec.convert(given["scores"], list[Any])
        metadata = metadata_of(trace.metadata)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        rows.rejected.append(refusal(1, error))
        return rows
    if not ui_file.observations:
        rows.rejected.append(Rejection(1, Reason.NOT_GENERATION, trace.id, day_of(given["timestamp"])))
    for number, value in enumerate(ui_file.observations, 1):
        add(rows, number, partial(_ui_observation, value, trace, metadata))
    for number, value in enumerate(scores, 1):
        add(rows, number, partial(_ui_score, value, trace.id))
    return rows


def _ui_observation(value: Any, trace: TraceRow, metadata: dict[str, Any]) -> Observation:
    own = row_of(msgspec.convert(value, dict[str, Any]), Observation)
    row = {"trace_id": trace.id, "start_time": None, **own, "latency": None}
    whole = {name: getattr(trace, name) for name in ("user_id", "session_id", "release", "tags")}
    marks = {name: row.get(name) or getattr(trace, name) for name in ("version", "environment")}
    said = {**metadata, **metadata_of(row.get("metadata"))}
    return msgspec.convert({**row, **whole, **marks, "metadata": said}, Observation)


def _ui_score(value: Any, trace_id: str) -> ScoreRow:
    row = row_of(msgspec.convert(value, dict[str, Any]), ScoreRow)
    return msgspec.convert({**row, "trace_id": trace_id}, ScoreRow)
