"""What assets show in Dagster: a picture or a table as metadata, in Markdown."""

import base64
from collections.abc import Sequence
from typing import Any

import dagster as dg

from pipeline.markdown import literal


def picture(png: bytes, alt: str) -> dg.MarkdownMetadataValue:
    return dg.MetadataValue.md(f"![{alt}](data:image/png;base64,{base64.b64encode(png).decode()})")


def table(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> dg.MarkdownMetadataValue:
    lines = [headers, *rows]
    markdown_rows = ["| " + " | ".join(literal(str(cell)) for cell in line) + " |" for line in lines]
    return dg.MetadataValue.md("\n".join([markdown_rows[0], "|" + " --- |" * len(headers), *markdown_rows[1:]]))
