"""The audit log: what was let in, forgotten, dropped, decided or promoted, one line each, chained by their digests.

Owns `audit/log.jsonl`, which only ever grows, and `audit/head.json`, which says where it ends. A changed, removed,
inserted or moved line breaks the chain; a shorter or longer log disagrees with the head. Whoever can write both can
also forge both: note the head that `verify` prints somewhere else, and give it to a later `verify`. Refuses to hold
users' data: its callers write marks, counts, digests, and which operator decided what.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pipeline import layout
from pipeline.storage import Record, Store, digest_json, write_atomically

LOG, HEAD = layout.AUDIT_LOG, layout.AUDIT_HEAD
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


class Head(Record):
    """Number and digest of the last entry. `following` is the digest of the one that is being written."""

    n: int = 0
    digest: str = START
    following: str = ""


class Verified(Record):
    """What `verify` found. `flaw` is empty when every line is as it was written; else it is about `line` (from 1)."""

    entries: int
    head: str
    line: int = 0
    flaw: str = ""


def record(
    store: Store, kind: Kind, subject: str, detail: Mapping[str, Any], now: datetime, *, once: bool = False
) -> Entry | None:
    """Append an entry, durable when this returns; any number of processes may. `now` needs a time zone.

    With `once`, nothing happens (None) when the log has an entry of that kind and subject. A line that a crash tore is
    moved aside, and an entry says so. Raises ValueError when the log does not end as its head says.
    """
    with _locked(store):
        head = _whole(store, now)
        if once and any((e.kind, e.subject) == (kind, subject) for e in entries(store)):
            return None
        return _append(store, head, kind, subject, detail, now)


def entries(store: Store) -> Generator[Entry]:
    """The entries in order, unchecked: `verify` checks. A torn last line is left out."""
    try:
        stream = store.path(LOG).open("rb")
    except FileNotFoundError:
        return
    with stream:
        for line in stream:
            if line.endswith(b"\n"):
                yield Entry.model_validate_json(line)


def verify(store: Store, known: str = "") -> Verified:
    """Read the whole log and find the first line that is not as it was written.

    `known`: digest of an entry that was noted elsewhere and has to be among them, against a log that was forged whole.
    """
    with _locked(store):
        head = store.read(HEAD, Head)
        n, previous, met = 0, START, not known
        raw = store.path(LOG).read_bytes() if store.path(LOG).exists() else b""
        *lines, torn = raw.split(b"\n")
        for n, line in enumerate(lines, start=1):
            if flaw := _flaw(line, n, previous):
                return Verified(entries=n - 1, head=previous, line=n, flaw=flaw)
            previous = str(json.loads(line)["digest"])
            met = met or previous == known
    result = Verified(entries=n, head=previous)
    if head is None:
        return result if not raw else result.model_copy(update={"line": n, "flaw": f"{HEAD} is gone"})
    if n < head.n:
        flaw = f"{head.n - n} lines are gone from the end: the head says {head.n}"
    elif (n, previous) not in ((head.n, head.digest), (head.n + 1, head.following)):
        flaw = f"the log does not end as {HEAD} says, with line {head.n} of digest {head.digest[:12]}"
    elif torn and not (head.following and n == head.n):
        flaw = "there is half a line after the end, and no process was writing one"
    else:
        flaw = "" if met else f"no line has the digest {known}: this is not the log in which it was noted"
        return result.model_copy(update={"flaw": flaw})
    return result.model_copy(update={"line": n + 1, "flaw": flaw})


def _flaw(line: bytes, n: int, previous: str) -> str:
    try:
        entry = Entry.model_validate_json(line)
    except ValueError:
        return "it is no entry"
    if entry.digest != entry.content_digest():
        return "its content does not have its digest"
    if entry.n != n:
        return f"it is entry {entry.n}"
    return "" if entry.previous == previous else "it does not follow the line before"


def _append(store: Store, head: Head, kind: Kind, subject: str, detail: Mapping[str, Any], now: datetime) -> Entry:
    assert now.tzinfo is not None, "a time without a zone says nothing in an audit"
    at = now.astimezone(UTC).isoformat(timespec="microseconds")
    n, previous = head.n + 1, head.digest
    bare = Entry(n=n, at=at, kind=kind, subject=subject, detail=dict(detail), previous=previous, digest="")
    entry = bare.model_copy(update={"digest": bare.content_digest()})
    # The head names the line before the line is there: a line that nobody announced is a forged one.
    store.write(HEAD, head.model_copy(update={"following": entry.digest}))
    with store.path(LOG).open("ab") as log:
        log.write(entry.model_dump_json().encode() + b"\n")
        log.flush()
        os.fsync(log.fileno())
    store.write(HEAD, Head(n=entry.n, digest=entry.digest))
    return entry


def _whole(store: Store, now: datetime) -> Head:
    """The head, after whatever a crash left unfinished is either taken in or moved aside."""
    path, head = store.path(LOG), store.read(HEAD, Head) or Head()
    size = path.stat().st_size if path.exists() else 0
    line, torn = _tail(path, size)
    last = Entry.model_validate_json(line) if line else None
    n, digest = (last.n, last.digest) if last else (0, START)
    if (n, digest) == (head.n + 1, head.following):  # the line was written, the head not yet
        head = Head(n=n, digest=digest)
        store.write(HEAD, head)
    if (n, digest) != (head.n, head.digest) or (torn and not head.following):
        raise ValueError(f"{path} does not end as {HEAD} says. Run `pt governance verify` before going on.")
    if not torn:
        return head
    aside = f"{layout.AUDIT}/torn-{n + 1}-{os.urandom(4).hex()}"
    write_atomically(store.path(aside), torn)
    os.truncate(path, size - len(torn))
    _append(store, head, "healed", aside, {"bytes": len(torn)}, now)
    healed = store.read(HEAD, Head)
    assert healed is not None, "it was written a moment ago"
    return healed


def _tail(path: Path, size: int) -> tuple[bytes, bytes]:
    """The last whole line, and what stands after it."""
    step = 1 << 16
    while size:
        with path.open("rb") as log:
            log.seek(max(0, size - step))
            block = log.read(step)
        *lines, torn = block.split(b"\n")
        if len(lines) > 1 or len(block) == size:
            return (lines[-1] if lines else b""), torn
        step *= 4
    return b"", b""


@contextmanager
def _locked(store: Store) -> Generator[None]:
    """One process at a time; the kernel drops the lock with the process."""
    path = store.path(layout.AUDIT_LOCK)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
