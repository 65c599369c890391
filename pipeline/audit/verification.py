"""Whether the log is as it was written: its chain, its head, and the heads that were noted elsewhere.

Owns the reading of it, once and line by line. What stands beside the log is compared by `pipeline.audit_beside`.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from pipeline.audit.entry import START, Head, digest_of, flaw_of
from pipeline.storage import Record


class Verified(Record):
    """What was found. `flaw` is empty when every line is as it was written; else it is about `line` (from 1)."""

    entries: int
    head: str
    line: int = 0
    flaw: str = ""


class NotedHead(NamedTuple):
    """The end of the log as somebody else wrote it down."""

    n: int
    digest: str
    noted: str
    """Where and when, for a person."""


def read_log(log: Path, head: Head | None, head_name: str, noted: Collection[NotedHead], known: str) -> Verified:
    """The first line that is not as it was written, alone with the log.

    `known`: digest of an entry that has to be among them; `noted`: which line has to have which digest.
    """
    n, previous, met, torn = 0, START, not known, b""
    expected: dict[int, NotedHead] = {each.n: each for each in noted}
    clashing = next((e for e in noted if expected[e.n].digest != e.digest), None)
    if log.exists():
        with log.open("rb") as stream:
            for line in stream:
                if not line.endswith(b"\n"):
                    torn = line
                    break
                if flaw := flaw_of(line[:-1], n + 1, previous):
                    return Verified(entries=n, head=previous, line=n + 1, flaw=flaw)
                n, previous = n + 1, digest_of(line)
                met = met or previous == known
                if n in expected and expected[n].digest != previous:
                    flaw = f"another line stood here when it was noted {expected[n].noted}"
                    return Verified(entries=n - 1, head=previous, line=n, flaw=flaw)
    result = Verified(entries=n, head=previous)
    newest = max(noted, key=lambda each: each.n, default=None)
    flaw = _end_flaw(n, previous, torn, head, head_name, bool(n or torn))
    if not flaw and newest is not None and newest.n > n:
        flaw = f"{newest.n - n} lines are gone from the end: {newest.n} stood here when it was noted {newest.noted}"
    elif not flaw and clashing is not None:
        flaw = f"line {clashing.n} was noted with two digests, the second {clashing.noted}"
    elif not flaw and not met:
        return result.model_copy(
            update={"flaw": f"no line has the digest {known}: this is not the log in which it was noted"}
        )
    if not flaw:
        return result
    return result.model_copy(update={"line": n if head is None and n else n + 1, "flaw": flaw})


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
