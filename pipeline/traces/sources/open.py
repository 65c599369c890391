"""Which reader a recipe's source has."""

from collections.abc import Iterator
from pathlib import Path

from pipeline.recipe.custom import create
from pipeline.traces.rows import Rows
from pipeline.traces.sources.langfuse_api import LangfuseApi
from pipeline.traces.sources.langfuse_export import LangfuseExport
from pipeline.traces.sources.mlflow_traces import MlflowTraces
from pipeline.traces.sources.otel import Otel
from pipeline.traces.sources.prompts import Prompts
from pipeline.traces.sources.protocol import Address, Digest, Source, SourcePart
from pipeline.traces.sources.rows import RowFiles
from pipeline.traces.sources.sql_rows import QueryRows

SERVED = "served"
"""Folder of the gateway's spans, below the root of the embedded production's export."""


class EmbeddedProduction:
    """The Langfuse export of what champions served, under its own names, and the spans of what the gateway served while
    rollouts ran, under `served/`."""

    def __init__(self, uri: str) -> None:
        self.label = uri
        self._export = LangfuseExport(uri)
        self._has_served = any(Path(uri, SERVED).rglob("*.jsonl"))
        self._served = Otel(f"{uri}/{SERVED}")

    def parts(self) -> list[SourcePart]:
        served = self._served.parts() if self._has_served else []
        return [*self._export.parts(), *(part._replace(name=f"{SERVED}/{part.name}") for part in served)]

    def rows(self, part: SourcePart, digest: Digest) -> Iterator[Rows]:
        prefix, _, name = part.name.partition("/")
        if prefix == SERVED:
            return self._served.rows(part._replace(name=name), digest)
        return self._export.rows(part, digest)


FILES = {"demo": EmbeddedProduction, "langfuse_export": LangfuseExport, "otel": Otel}


def open_source(address: Address) -> Source:
    """The source at an address; nothing is connected or read yet. Raises ValueError for an address of no known kind."""
    section, uri = address.section, address.uri
    match section.kind:
        case "langfuse_api":
            return LangfuseApi(uri, section)
        case "mlflow":
            return MlflowTraces(uri, section)
        case "prompts":
            return Prompts(uri, section)
        case "rows":
            return QueryRows(uri, section) if section.query else RowFiles(uri, section)
        case "custom":
            return create(section, uri)
        case kind:
            return FILES[kind](uri)
