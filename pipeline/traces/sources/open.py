"""Which reader a recipe's source has."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.recipe.custom import create
from pipeline.recipe.sources import ImportSource
from pipeline.traces.rows import Rows
from pipeline.traces.sources.imports import ImportedFiles
from pipeline.traces.sources.langfuse_api import LangfuseApi
from pipeline.traces.sources.langfuse_export import LangfuseExport
from pipeline.traces.sources.mlflow_traces import MlflowTraces
from pipeline.traces.sources.otel import Otel
from pipeline.traces.sources.prompts import Prompts
from pipeline.traces.sources.protocol import Address, Digest, Source, SourcePart
from pipeline.traces.sources.rows import RowFiles

SERVED = "served"
"""Folder of the gateway's spans, below the root of the embedded production's export."""


class Composed:
    """Several sources as one, by the beginning of the names of their parts there; "" is the last one's."""

    def __init__(self, label: str, sources: Mapping[str, Source]) -> None:
        self.label, self._sources = label, sources

    def parts(self) -> list[SourcePart]:
        listed = {prefix: source.parts() for prefix, source in self._sources.items()}
        for part in listed.get("", ()):
            if prefix := next((each for each in self._sources if each and part.name.startswith(each)), None):
                raise ValueError(
                    f"{self.label} holds {part.name}: {prefix} is another source's name. Rename the folder."
                )
        named = [part._replace(name=f"{prefix}{part.name}") for prefix, parts in listed.items() for part in parts]
        return sorted(named, key=lambda part: part.name)

    def rows(self, part: SourcePart, digest: Digest) -> Iterator[Rows]:
        prefix = next(each for each in self._sources if part.name.startswith(each))
        return self._sources[prefix].rows(part._replace(name=part.name.removeprefix(prefix)), digest)


def embedded(uri: str) -> Source:
    """The Langfuse export of what champions served, under its own names, and the spans of what the gateway served while
    rollouts ran, under `served/`."""
    has_served = any(Path(uri, SERVED).rglob("*.jsonl"))
    served: dict[str, Source] = {f"{SERVED}/": Otel(f"{uri}/{SERVED}")} if has_served else {}
    return Composed(uri, {**served, "": LangfuseExport(uri)})


def open_source(address: Address) -> Source:
    """The source at an address, with its imports; nothing is connected or read yet. Raises ValueError for an address of
    no known kind."""
    sources: dict[str, Source] = {prefix: ImportedFiles(section, prefix) for prefix, section in address.imports}
    if isinstance(address.section, ImportSource):
        return Composed(address.uri, sources)
    own = _source(address.section, address.uri)
    return Composed(own.label, {**sources, "": own}) if sources else own


def _source(section: Any, uri: str) -> Source:
    match section.kind:
        case "langfuse_api":
            return LangfuseApi(uri, section)
        case "mlflow":
            return MlflowTraces(uri, section)
        case "prompts":
            return Prompts(uri, section)
        case "rows" if section.query:
            from pipeline.traces.sources.sql_rows import QueryRows  # SQLAlchemy takes half a second of every worker

            return QueryRows(uri, section)
        case "rows":
            return RowFiles(uri, section)
        case "custom":
            return create(section, uri)
        case "otel":
            return Otel(uri)
        case "demo":
            return embedded(uri)
        case _:
            return LangfuseExport(uri)
