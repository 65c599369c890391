"""What assets show in Dagster: a picture or a table as metadata, in Markdown."""

import base64
import html
import re
from collections.abc import Sequence
from typing import Any

import dagster as dg


def picture(png: bytes, alt: str) -> dg.MarkdownMetadataValue:
    return dg.MetadataValue.md(f"![{alt}](data:image/png;base64,{base64.b64encode(png).decode()})")


def table(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> dg.MarkdownMetadataValue:
    lines = [headers, *rows]
    markdown_rows = ["| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines]
    return dg.MetadataValue.md("\n".join([markdown_rows[0], "|" + " --- |" * len(headers), *markdown_rows[1:]]))


def _cell(value: Any) -> str:
    """A value as it is: whatever of it could be Markdown, HTML or the end of a cell is escaped, for users wrote it."""
    text = " ".join(str(value).split())
    return re.sub(r"([\\`*_{}\[\]()#+!|~<>])", r"\\\1", html.escape(text, quote=False)) if text else ""
