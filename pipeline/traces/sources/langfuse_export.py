"""Reader of a Langfuse blob-storage export: `observations_v2/` and `scores/`, or the older `traces/`, `observations/`
and `scores/`; JSON lines, CSV or Parquet. Written from the published field lists.

Owns the export's layout. Refuses to join: of the older layout, user, session and metadata are rows of their own
(`Attributes`); a call of the newer one that lacks them counts as without consent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from pipeline.traces.rows import Rejection, Rows, Trace
from pipeline.traces.sources import csv_rows
from pipeline.traces.sources.compression import PartLimits
from pipeline.traces.sources.elements import may_be_array
from pipeline.traces.sources.files import CSV, JSON, PARQUET, Files, bare_name
from pipeline.traces.sources.langfuse import Observation, ScoreRow, TraceRow, add
from pipeline.traces.sources.langfuse_plain import plain_calls
from pipeline.traces.sources.lines import blocks
from pipeline.traces.sources.parquet import RecordBatch, records
from pipeline.traces.sources.protocol import Digest, SourcePart

FORMATS = (*JSON, *PARQUET, *CSV)
KINDS = {"calls": Observation, "scores": ScoreRow, "attributes": TraceRow}
_observation = msgspec.json.Decoder(Observation)


class LangfuseExport:
    def __init__(self, uri: str, limits: PartLimits | None = None) -> None:
        self.label = uri
        self._files = Files(uri, limits)

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
        if part.name.endswith(PARQUET):
            kind = KINDS[part.holds]
            yield from self._records(part, records(self._files, part, digest, kind.__struct_fields__))
        elif bare_name(part.name).endswith(CSV):
            yield from self._records(part, csv_rows.records(self._files.chunks(part, digest)))
        elif part.holds == "calls":
            for block in blocks(self._files.chunks(part, digest), array=may_be_array(part.name)):
                usual, others = plain_calls(block, _trace)
                if len(usual):
                    yield Rows(traces=usual)
                yield _rows(others, _observation.decode, block.rejected)
        else:
            decoder = msgspec.json.Decoder(KINDS[part.holds])
            for block in blocks(self._files.chunks(part, digest), array=may_be_array(part.name)):
                yield _rows(block.lines(), decoder.decode, block.rejected)

    def _records(self, part: SourcePart, batches: Iterator[RecordBatch]) -> Iterator[Rows]:
        kind = KINDS[part.holds]
        for batch in batches:
            rows = Rows(rejected=batch.rejected)
            for line, record in batch.records:
                add(rows, line, lambda record=record: msgspec.convert(record, kind))
            yield rows


def _rows(lines: Iterable[tuple[int, bytes]], decode: Callable[[bytes], Any], rejected: list[Rejection]) -> Rows:
    rows = Rows()
    for line, text in lines:
        add(rows, line, lambda text=text: decode(text))
    rows.rejected += rejected
    return rows


def _trace(line: int, text: bytes) -> Trace:
    """Of a usual row, which is never rejected."""
    (trace,) = _rows([(line, text)], _observation.decode, []).traces
    return trace
