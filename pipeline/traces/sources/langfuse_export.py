"""Reader of Langfuse's blob-storage export, written from the published field lists."""

from collections.abc import Iterator
from functools import partial

import msgspec

from pipeline.traces.rows import Rows
from pipeline.traces.sources.files import JSON, Files
from pipeline.traces.sources.langfuse import KINDS, Observation, add, plain_trace
from pipeline.traces.sources.lines import blocks
from pipeline.traces.sources.parquet import records
from pipeline.traces.sources.protocol import Digest, PartLimits, SourcePart

PARQUET = ".parquet"
FORMATS = (*JSON, PARQUET)


class LangfuseExport:
    """`observations_v2/` and `scores/`, or the older layout, where `traces/` has user, session and metadata."""

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
                f"{self.label} has no observations_v2/ (or observations/) with JSON lines or Parquet in it. "
                "Point traces.source.uri to the folder above observations_v2/ of a Langfuse blob-storage export."
            )
        return sorted(source_parts + self._files.parts("scores", holds="scores", suffixes=FORMATS))

    def rows(self, part: SourcePart, digest: Digest) -> Iterator[Rows]:
        kind = KINDS[part.holds]
        if part.name.endswith(PARQUET):
            for batch in records(self._files, part, digest, kind.__struct_fields__):
                rows = Rows(rejected=batch.rejected)
                for line, record in batch.records:
                    add(rows, line, partial(msgspec.convert, record, kind))
                yield rows
            return
        decode = msgspec.json.Decoder(kind).decode
        for block in blocks(self._files.chunks(part, digest), part.name):
            rows = Rows()
            for line, text in block.lines():
                if kind is Observation and (trace := plain_trace(line, text)):
                    rows.traces.append(trace)
                else:
                    add(rows, line, partial(decode, text))
            rows.rejected += block.rejected
            yield rows
