"""Which reader a recipe's source has. Owns that choice alone."""

from __future__ import annotations

from pipeline.recipe.custom import create
from pipeline.traces.sources.embedded import EmbeddedProduction
from pipeline.traces.sources.langfuse_api import LangfuseApi
from pipeline.traces.sources.langfuse_export import LangfuseExport
from pipeline.traces.sources.langfuse_ui import LangfuseUi
from pipeline.traces.sources.mlflow_traces import MlflowTraces
from pipeline.traces.sources.openai_logs import OpenAiLogs
from pipeline.traces.sources.otel import Otel
from pipeline.traces.sources.postgres_table import PostgresTable
from pipeline.traces.sources.prompts import Prompts
from pipeline.traces.sources.protocol import Address, Source


def open_source(address: Address) -> Source:
    """The source at an address; nothing is connected or read yet. Raises ValueError for an address of no known kind."""
    kind, uri, limits = address.section.kind, address.uri, address.limits
    if kind == "postgres_table":
        return PostgresTable(uri, address.section.table)
    if kind == "langfuse_api":
        return LangfuseApi(uri, address.section)
    if kind == "mlflow":
        return MlflowTraces(uri, address.section)
    if kind == "langfuse_ui":
        return LangfuseUi(uri, limits)
    if kind == "otel":
        return Otel(uri, limits)
    if kind == "openai_logs":
        return OpenAiLogs(uri, limits)
    if kind == "prompts":
        return Prompts(uri, address.section)
    if kind == "custom":
        return create(address.section, uri)
    if kind == "demo":
        return EmbeddedProduction(uri, limits)
    assert kind == "langfuse_export", kind
    return LangfuseExport(uri, limits)
