"""Names and labels that the API server takes, made from anything: a stage's id, a person's text, 300 characters."""

from __future__ import annotations

import hashlib
import re

LABEL = 63
"""Characters of a DNS label and of a label's value (RFC 1123)."""
NAME = 40
"""Of a gang: its pods add `-trainer-0-NNN-xxxxx` and must stay within LABEL."""


def object_name(*parts: str, limit: int = NAME) -> str:
    """The parts joined by dashes as a DNS label, at most `limit` long.

    What had to change (a character, the length) is made up for by a digest: different texts get different names, but
    for one that already looks like another's. Raises ValueError when nothing is given.
    """
    given = "-".join(parts)
    if not given.strip("-"):
        raise ValueError("A name of nothing was asked for: give at least one part that is not empty.")
    name = re.sub(r"-+", "-", re.sub(r"[^a-z0-9]+", "-", given.lower())).strip("-")
    if name == given and name[0].isalpha() and len(name) <= limit:
        return name
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]
    return f"{_leading_letter(name)[: limit - 9].rstrip('-')}-{digest}"


def label_value(text: str) -> str:
    """`text` as the value of a label: itself where it may stand, else shortened, with a digest."""
    if re.fullmatch(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", text):
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    kept = re.sub(r"[^A-Za-z0-9._-]+", "-", text)[: LABEL - 9].strip("-_.")
    return f"{kept}-{digest}" if kept else digest


def _leading_letter(name: str) -> str:
    return name if name[:1].isalpha() else f"x-{name}".rstrip("-")
