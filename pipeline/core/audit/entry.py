"""One line of the audit log, and what says where the log ends. Owns how a line is bound to the one before."""

from __future__ import annotations

import json
from typing import Any, Literal

from pipeline.core.storage import Record, digest_json

START = "0" * 64
"""What the first entry names as the digest before it."""

Kind = Literal[
    "admission",
    "erasure",
    "retention",
    "promotion",
    "rollback",
    "hold",
    "weight",
    "approval",
    "decision",
    "retry",
    "healed",
]


class Entry(Record):
    """One line. `digest` is the sha256 of all its other fields, `previous` the digest of the line before."""

    n: int
    at: str
    kind: Kind
    subject: str
    detail: dict[str, Any]
    previous: str
    digest: str

    def content_digest(self) -> str:
        return digest_json(self.model_dump(mode="json", exclude={"digest"}))

    def after(self, n: int, previous: str) -> Entry:
        """The same as line `n` that follows the line of that digest."""
        bare = self.model_copy(update={"n": n, "previous": previous, "digest": ""})
        return bare.model_copy(update={"digest": bare.content_digest()})


class Head(Record):
    """Number and digest of the last entry. `following` is the digest of the one that is being written."""

    n: int = 0
    digest: str = START
    following: str = ""


def flaw_of(line: bytes, n: int, previous: str) -> str:
    """What is wrong with a line as the `n`th, after the one of that digest; "" when it is as it was written."""
    try:
        entry = Entry.model_validate_json(line)
    except ValueError:
        return "it is no entry"
    if entry.digest != entry.content_digest():
        return "its content does not have its digest"
    if entry.n != n:
        return f"it is entry {entry.n}"
    return "" if entry.previous == previous else "it does not follow the line before"


def digest_of(line: bytes) -> str:
    """Of a line without a flaw."""
    return str(json.loads(line)["digest"])
