"""One line of the audit log, the record of where the log ends, and the verification of all lines."""

from pathlib import Path
from typing import Any, Literal

from pipeline.core.storage import Record, digest_json

START = "0" * 64
"""What the first entry names as the digest before it."""

Kind = Literal[
    "admission", "erasure", "retention", "promotion", "rollback", "hold", "weight", "approval", "decision", "retry",
    "healed",
]  # fmt: skip


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


class Verified(Record):
    """`flaw` is empty when no line was changed; else it is about `line` (from 1)."""

    entries: int
    head: str
    line: int = 0
    flaw: str = ""


def read_log(log: Path, head: Head | None, head_name: str, against: str) -> Verified:
    n, previous, met, torn = 0, START, not against, b""
    if log.exists():
        with log.open("rb") as stream:
            for line in stream:
                if not line.endswith(b"\n"):
                    torn = line
                    break
                if flaw := flaw_of(line[:-1], n + 1, previous):
                    return Verified(entries=n, head=previous, line=n + 1, flaw=flaw)
                n, previous = n + 1, Entry.model_validate_json(line).digest
                met = met or previous == against
    result = Verified(entries=n, head=previous)
    flaw = _end_flaw(n, previous, torn, head, head_name, bool(n or torn))
    if flaw:
        return result.model_copy(update={"line": n if head is None and n else n + 1, "flaw": flaw})
    if not met:
        flaw = f"no line has the digest {against}: this is not the log in which it was noted"
    return result.model_copy(update={"flaw": flaw})


def _end_flaw(n: int, digest: str, torn: bytes, head: Head | None, head_name: str, is_there: bool) -> str:
    if head is None:
        return f"{head_name} is gone" if is_there else ""
    if n < head.n:
        return f"{head.n - n} lines are gone from the end: the head says {head.n}"
    if (n, digest) not in ((head.n, head.digest), (head.n + 1, head.following)):
        return f"the log does not end as {head_name} says, with line {head.n} of digest {head.digest[:12]}"
    if torn and not (head.following and n == head.n):
        return "there is half a line after the end, and no process was writing one"
    return ""
