"""Whether the log is as it was written: its chain, its head, and a head that was noted elsewhere."""

from __future__ import annotations

from pathlib import Path

from pipeline.core.audit.entry import START, Head, digest_of, flaw_of
from pipeline.core.storage import Record


class Verified(Record):
    """What was found. `flaw` is empty when every line is as it was written; else it is about `line` (from 1)."""

    entries: int
    head: str
    line: int = 0
    flaw: str = ""


def read_log(log: Path, head: Head | None, head_name: str, against: str) -> Verified:
    """The first line that is not as it was written. `against`: digest of an entry that has to be among them."""
    n, previous, met, torn = 0, START, not against, b""
    if log.exists():
        with log.open("rb") as stream:
            for line in stream:
                if not line.endswith(b"\n"):
                    torn = line
                    break
                if flaw := flaw_of(line[:-1], n + 1, previous):
                    return Verified(entries=n, head=previous, line=n + 1, flaw=flaw)
                n, previous = n + 1, digest_of(line)
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
