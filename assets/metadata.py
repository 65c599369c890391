"""What assets show in Dagster: a picture or a table as Markdown, and the facts that Dagster has names for."""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa

from pipeline.core.markdown import literal
from pipeline.core.storage import Record, digest_json
from pipeline.views import Plot

VERSION_TAG = "dagster/data_version"
"""On an event that is no output: what Dagster takes for the version of its data."""


def output(record: Record, version: Any, metadata: Mapping[str, Any]) -> dg.Output[Any]:
    """A stage's record, shown with `metadata`. `version`: a digest of what it published, or what has one as JSON, by
    which Dagster tells whether what lies below is stale."""
    digest = version if isinstance(version, str) else digest_json(version)
    fields = record.model_dump(mode="json", exclude={"metrics", "histogram", "components", "days"})
    metadata = {**metadata, "record": dg.MetadataValue.json(fields)}
    return dg.Output(record, metadata=metadata, data_version=dg.DataVersion(digest))


def table_facts(rows: int, uri: str, schema: pa.Schema) -> dict[str, Any]:
    """Of a published table, under the names that Dagster's pages know."""
    columns = [dg.TableColumn(field.name, str(field.type)) for field in schema]
    address = uri if "://" in uri else Path(uri).absolute().as_uri()
    return {"dagster/row_count": rows, "dagster/column_schema": dg.TableSchema(columns=columns), "dagster/uri": address}


def picture(plot: Plot, alt: str) -> dg.MarkdownMetadataValue:
    return dg.MetadataValue.md(f"![{alt}](data:image/png;base64,{base64.b64encode(plot.png()).decode()})")


def table(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> dg.MarkdownMetadataValue:
    lines = [headers, *rows]
    markdown_rows = ["| " + " | ".join(literal(str(cell)) for cell in line) + " |" for line in lines]
    return dg.MetadataValue.md("\n".join([markdown_rows[0], "|" + " --- |" * len(headers), *markdown_rows[1:]]))


def shares(counts: Mapping[str, float]) -> dg.MarkdownMetadataValue:
    """A table of what makes up a whole."""
    whole = sum(counts.values()) or 1
    return table(["", "count", "share"], [(name, f"{n:,.0f}", f"{n / whole:.1%}") for name, n in counts.items()])


def warning(name: str, passed: bool, description: str) -> dg.AssetCheckResult:
    """A check that stops no run where it does not pass."""
    severity = dg.AssetCheckSeverity.WARN
    return dg.AssetCheckResult(check_name=name, passed=passed, severity=severity, description=description)
