"""Reader of Langfuse's blob-storage export, written from the published field lists."""

from collections.abc import Iterator
from functools import partial

import msgspec

from pipeline.traces.rows import Rows
from pipeline.traces.sources.files import LINES, Files
from pipeline.traces.sources.langfuse import KINDS, Observation, add, plain_trace
from pipeline.traces.sources.lines import blocks, elements
from pipeline.traces.sources.protocol import Digest, SourcePart
from pipeline.traces.sources.tables import parquet_records

PARQUET = ".parquet"
FORMATS = (*LINES, ".json", PARQUET)


class LangfuseExport:
    """`observations_v2/` and `scores/`."""

    def __init__(self, uri: str) -> None:
        self.label = uri
        self._files = Files(uri)

    def parts(self) -> list[SourcePart]:
        calls = self._files.parts("observations_v2", suffixes=FORMATS)
        if not calls:
            raise ValueError(
                f"{self.label} has no observations_v2/ with JSON lines or Parquet in it. Point traces.source.uri to "
                "the folder above it, and have Langfuse export enriched observations."
            )
        return calls + self._files.parts("scores", holds="scores", suffixes=FORMATS)

    def rows(self, part: SourcePart, digest: Digest) -> Iterator[Rows]:
        kind = KINDS[part.holds]
        if part.name.endswith(PARQUET):
            for batch in parquet_records(self._files, part, digest, kind.__struct_fields__):
                rows = Rows(rejected=batch.rejected)
                for line, record in batch.records:
                    add(rows, line, partial(msgspec.convert, record, kind))
                yield rows
            return
        decode = msgspec.json.Decoder(kind).decode
        split = elements if part.name.removesuffix(".gz").endswith(".json") else blocks
        for block in split(self._files.chunks(part, digest)):
            rows = Rows()
            for line, text in block.lines():
                if kind is Observation and (trace := plain_trace(line, text)):
                    rows.traces.append(trace)
                else:
                    add(rows, line, partial(decode, text))
            rows.rejected += block.rejected
            yield rows
