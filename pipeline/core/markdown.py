"""Escapes texts of users inside Markdown: Dagster's metadata and MLflow's cards are shown as HTML."""

import html
import re

_SIGNS = re.compile(r"([\\`*_{}\[\]()#+!|~<>])")
_ADDRESS = re.compile(r"(?i)(?<=[a-z])(?=://)|(?<=www)(?=\.)")
_JOINER = "\u2060"
"""Invisible; it breaks addresses that Markdown would turn into links."""


def literal(text: str) -> str:
    """The text on one line, escaped for a paragraph, a list or a cell of a table."""
    line = _ADDRESS.sub(_JOINER, " ".join(text.split()))
    return _SIGNS.sub(r"\\\1", html.escape(line, quote=False))
