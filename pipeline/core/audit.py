"""The audit log: admissions, erasures, decisions and promotions, one line each, chained by their digests.
`audit/head.json` says where the log ends. Callers write no data of users: ids of proofs, counts, digests, operators."""

import fcntl
import os
from collections.abc import Generator, Mapping
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from pipeline.core import layout
from pipeline.core.storage import Record, Store, append, digest_json, locked, write_atomically

LOG, HEAD = layout.AUDIT_LOG, layout.AUDIT_HEAD
START = "0" * 64
"""What the first entry names as the digest before it."""
MAX_LINES = 1 << 20
"""Bytes in which the last two lines have room."""

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


class Verified(Record):
    """`flaw` is empty when no line was changed; else it is about `line` (from 1)."""

    entries: int
    head: str
    line: int = 0
    flaw: str = ""


def record(
    store: Store, kind: Kind, subject: str, detail: Mapping[str, Any], now: datetime, *, once: bool = False
) -> Entry | None:
    """Append an entry, durable when this returns. `now` needs a time zone. `once`: None where the log has an entry of
    that kind and subject. Raises ValueError when the log does not end as its head says."""
    with locked(store.path(layout.AUDIT_LOCK)):
        head = _whole(store, now)
        if once and (kind, subject) in _pairs(store.path(LOG)):
            return None
        return _append(store, head, kind, subject, detail, now)


def entries(store: Store) -> Generator[Entry]:
    """The entries in order, unchecked, without a torn last line."""
    try:
        stream = store.path(LOG).open("rb")
    except FileNotFoundError:
        return
    with stream:
        for line in stream:
            if line.endswith(b"\n"):
                yield Entry.model_validate_json(line)


def written(store: Store) -> frozenset[tuple[str, str]]:
    with locked(store.path(layout.AUDIT_LOCK)):
        return frozenset(_pairs(store.path(LOG)))


def verify(store: Store, against: str = "") -> Verified:
    """Read the whole log and find the first line that was changed. `against`: digest of an entry that was noted
    elsewhere, which a log forged as a whole lacks."""
    lock, path = store.path(layout.AUDIT_LOCK), store.path(LOG)
    with locked(lock, fcntl.LOCK_SH) if lock.exists() else nullcontext():
        head = store.read(HEAD, Head)
        *lines, torn = path.read_bytes().split(b"\n") if path.exists() else [b""]
    n, previous, met = 0, START, not against
    for line in lines:
        entry, flaw = _next(line, n + 1, previous)
        if entry is None:
            return Verified(entries=n, head=previous, line=n + 1, flaw=flaw)
        n, previous = entry.n, entry.digest
        met = met or previous == against
    line, flaw = n + 1, _end_flaw(n, previous, torn, head)
    if head is None and n:
        line = n
    if not flaw and not met:
        line, flaw = 0, f"no line has the digest {against}: this is not the log in which it was noted"
    return Verified(entries=n, head=previous, line=line if flaw else 0, flaw=flaw)


def _next(line: bytes, n: int, previous: str) -> tuple[Entry | None, str]:
    """The `n`th entry, after the one of that digest, or what is wrong with its line."""
    try:
        entry = Entry.model_validate_json(line)
    except ValueError:
        return None, "it is no entry"
    if entry.digest != entry.content_digest():
        return None, "its content does not have its digest"
    if entry.n != n:
        return None, f"it is entry {entry.n}"
    return (entry, "") if entry.previous == previous else (None, "it does not follow the line before")


def _end_flaw(n: int, digest: str, torn: bytes, head: Head | None) -> str:
    if head is None:
        return f"{HEAD} is gone" if n or torn else ""
    if n < head.n:
        return f"{head.n - n} lines are gone from the end: the head says {head.n}"
    if (n, digest) not in ((head.n, head.digest), (head.n + 1, head.following)):
        return f"the log does not end as {HEAD} says, with line {head.n} of digest {head.digest[:12]}"
    if torn and not (head.following and n == head.n):
        return "there is half a line after the end, and no process was writing one"
    return ""


class _IndexedEntry(msgspec.Struct):
    kind: str
    subject: str


def _pairs(log: Path) -> set[tuple[str, str]]:
    """Kind and subject of every entry; a line that is none is for `verify`."""
    pairs: set[tuple[str, str]] = set()
    for line in log.read_bytes().splitlines() if log.exists() else ():
        with suppress(msgspec.DecodeError):
            entry = msgspec.json.decode(line, type=_IndexedEntry)
            pairs.add((entry.kind, entry.subject))
    return pairs


def _append(store: Store, head: Head, kind: Kind, subject: str, detail: Mapping[str, Any], now: datetime) -> Entry:
    assert now.tzinfo is not None, "a time without a zone says nothing in an audit"
    at = now.astimezone(UTC).isoformat(timespec="microseconds")
    bare = Entry(n=head.n + 1, at=at, kind=kind, subject=subject, detail=dict(detail), previous=head.digest, digest="")
    entry = bare.model_copy(update={"digest": bare.content_digest()})
    # The head announces the line before it is written: a line that was not announced is forged.
    store.write(HEAD, head.model_copy(update={"following": entry.digest}))
    append(store.path(LOG), entry.model_dump_json().encode() + b"\n", durable=True)
    with suppress(OSError):  # the line is there, and the next entry takes the head along, as after a crash
        store.write(HEAD, Head(n=entry.n, digest=entry.digest))
    return entry


def _whole(store: Store, now: datetime) -> Head:
    """The head, after an unfinished line of a crash was either accepted or moved aside."""
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
    """The last whole line, and the bytes after it."""
    if not size:
        return b"", b""
    with path.open("rb") as log:
        log.seek(max(0, size - MAX_LINES))
        *lines, torn = log.read().split(b"\n")
    return (lines[-1] if lines else b""), torn
