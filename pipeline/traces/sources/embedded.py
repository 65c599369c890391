"""Reader of the embedded production: the Langfuse export of what champions served, and the spans of what the gateway
served while rollouts ran. Owns where the two lie below one root."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pipeline.traces.rows import Rows
from pipeline.traces.sources.compression import PartLimits
from pipeline.traces.sources.langfuse_export import LangfuseExport
from pipeline.traces.sources.otel import Otel
from pipeline.traces.sources.protocol import Digest, SourcePart

SERVED = "served"
"""Folder of the gateway's spans, below the root of the export."""


class EmbeddedProduction:
    """Parts of the export under their own names, parts of the gateway's under `served/`."""

    def __init__(self, uri: str, limits: PartLimits | None = None) -> None:
        self.label = uri
        self._export = LangfuseExport(uri, limits)
        self._has_served = any(Path(uri, SERVED).rglob("*.jsonl"))
        self._served = Otel(f"{uri}/{SERVED}", limits)

    def parts(self) -> list[SourcePart]:
        served = self._served.parts() if self._has_served else []
        return [*self._export.parts(), *(part._replace(name=f"{SERVED}/{part.name}") for part in served)]

    def rows(self, part: SourcePart, digest: Digest) -> Iterator[Rows]:
        prefix, _, name = part.name.partition("/")
        if prefix == SERVED:
            return self._served.rows(part._replace(name=name), digest)
        return self._export.rows(part, digest)
