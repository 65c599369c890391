"""Texts of others inside Markdown of ours: shown as they are, whatever of them could be Markdown or HTML.

Names of slices, reasons that people typed and prompts stand in Dagster's metadata and in MLflow's cards, whose pages
make HTML of them. Owns the way in and the way back. Refuses to write a document.
"""

from __future__ import annotations

import html
import re

_SIGNS = re.compile(r"([\\`*_{}\[\]()#+!|~<>])")
_ADDRESS = re.compile(r"(?i)(?<=[a-z])(?=://)|(?<=www)(?=\.)")
_ESCAPED = re.compile(r"\\([\\`*_{}\[\]()#+!|~<>])")
_JOINER = "\u2060"
"""Breaks what Markdown would make a link of by itself, and is not seen."""


def literal(text: str) -> str:
    """The text on one line, as a paragraph, a list or a cell of a table shows it: no HTML, link, picture or end of a
    cell comes of it."""
    line = _ADDRESS.sub(_JOINER, " ".join(text.split()))
    return _SIGNS.sub(r"\\\1", html.escape(line, quote=False))


def plain(literal_text: str) -> str:
    """What `literal` was given, on one line."""
    return html.unescape(_ESCAPED.sub(r"\1", literal_text)).replace(_JOINER, "")
