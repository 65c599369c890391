"""Reader of rows in Parquet files, with a prompt and its completion in columns that the recipe names. Each file is a
part; a row's observation id is the file's name and its place in it."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, time
from typing import Any

import msgspec

from pipeline.recipe.traces import RowsSource
from pipeline.traces.rows import Rejection, Rows, Trace
from pipeline.traces.sources import chat
from pipeline.traces.sources.fields import metadata_text, put, said, utc
from pipeline.traces.sources.files import Files
from pipeline.traces.sources.lines import refusal
from pipeline.traces.sources.parquet import records
from pipeline.traces.sources.protocol import Digest, SourcePart

PARQUET = ".parquet"
MODEL = "unknown"
"""Of every row: a set does not say who answered."""


class ParquetRows:
    def __init__(self, uri: str, section: RowsSource) -> None:
        self.label = uri
        self._files, self._section = Files(uri), section

    def parts(self) -> list[SourcePart]:
        if parts := self._files.parts(suffixes=(PARQUET,)):
            return parts
        raise ValueError(f"{self.label} holds no {PARQUET}. Point traces.source.uri to the files or the folder above.")

    def rows(self, part: SourcePart, digest: Digest) -> Iterator[Rows]:
        wanted = self._section.fields.columns
        for batch in records(self._files, part, digest, wanted):
            rows = Rows(rejected=batch.rejected)
            for line, record in batch.records:
                if missing := [name for name in wanted if name not in record]:
                    raise ValueError(
                        f"{self.label}: {part.name} has no column {' and no '.join(missing)}. Name its columns in "
                        "traces.source.fields."
                    )
                put(rows, self._row(record, part, line))
            yield rows

    def _row(self, record: Mapping[str, Any], part: SourcePart, line: int) -> Trace | Rejection:
        fields = self._section.fields
        try:
            dated = record[fields.time] if fields.time else None
            moment = utc(dated) if dated is not None else datetime.combine(self._section.day, time(), UTC)
            kept = {name: record[name] for name in fields.metadata}
            content = json.dumps([record[fields.prompt], record[fields.completion], kept], default=str).encode()
            trace = Trace(
                trace_id=f"row-{hashlib.sha256(content).hexdigest()[:32]}",
                observation_id=f"{part.name}:{line}",
                timestamp=moment,
                model=MODEL,
                user_id=str(record[fields.user]) if fields.user and record[fields.user] is not None else None,
                session_id=None,
                messages=[],
                completion="",
                line=line,
                metadata=metadata_text({**kept, "licence": self._section.licence}),
            )
            return said(trace, chat.parse(record[fields.prompt], "user"), chat.of_output(record[fields.completion]))
        except (msgspec.ValidationError, RecursionError, TypeError) as error:
            return refusal(line, error)
