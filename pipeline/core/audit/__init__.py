"""The audit log: admissions, erasures, decisions and promotions, one line each, chained by their digests.
`audit/head.json` says where the log ends. Callers write no data of users: ids of proofs, counts, digests, operators."""

import fcntl
import os
from collections.abc import Generator, Mapping
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.core import layout
from pipeline.core.audit.entry import START, Entry, Head, Kind, Verified, read_log
from pipeline.core.audit.index import index_of
from pipeline.core.storage import Store, write_atomically
from pipeline.core.unfinished import locked, sync

__all__ = ["HEAD", "LOG", "START", "Entry", "Head", "Kind", "Verified"]

LOG, HEAD = layout.AUDIT_LOG, layout.AUDIT_HEAD
MAX_LINES = 1 << 20
"""Bytes in which the last two lines have room."""


def record(
    store: Store, kind: Kind, subject: str, detail: Mapping[str, Any], now: datetime, *, once: bool = False
) -> Entry | None:
    """Append an entry, durable when this returns. `now` needs a time zone. `once`: None where the log has an entry of
    that kind and subject. Raises ValueError when the log does not end as its head says."""
    with store.alone(layout.AUDIT_LOCK):
        head = _whole(store, now)
        if once and (kind, subject) in index_of(store.path(LOG)).pairs:
            return None
        return _append(store, head, kind, subject, detail, now)


def entries(store: Store, offset: int = 0) -> Generator[Entry]:
    """The entries in order, from a byte on, unchecked, without a torn last line."""
    try:
        stream = store.path(LOG).open("rb")
    except FileNotFoundError:
        return
    with stream:
        stream.seek(offset)
        for line in stream:
            if line.endswith(b"\n"):
                yield Entry.model_validate_json(line)


def written(store: Store) -> frozenset[tuple[str, str]]:
    with store.alone(layout.AUDIT_LOCK):
        return frozenset(index_of(store.path(LOG)).pairs)


def verify(store: Store, against: str = "") -> Verified:
    """Read the whole log and find the first line that was changed. `against`: digest of an entry that was noted
    elsewhere, which a log forged as a whole lacks."""
    lock = store.path(layout.AUDIT_LOCK)
    with locked(lock, fcntl.LOCK_SH) if lock.exists() else nullcontext():
        return read_log(store.path(LOG), store.read(HEAD, Head), HEAD, against)


def _append(store: Store, head: Head, kind: Kind, subject: str, detail: Mapping[str, Any], now: datetime) -> Entry:
    assert now.tzinfo is not None, "a time without a zone says nothing in an audit"
    at = now.astimezone(UTC).isoformat(timespec="microseconds")
    bare = Entry(n=head.n + 1, at=at, kind=kind, subject=subject, detail=dict(detail), previous=head.digest, digest="")
    entry = bare.model_copy(update={"digest": bare.content_digest()})
    # The head announces the line before it is written: a line that was not announced is forged.
    store.write(HEAD, head.model_copy(update={"following": entry.digest}))
    _add_line(store.path(LOG), entry.model_dump_json().encode() + b"\n")
    with suppress(OSError):  # the line is there, and the next entry takes the head along, as after a crash
        store.write(HEAD, Head(n=entry.n, digest=entry.digest))
    return entry


def _add_line(path: Path, line: bytes) -> None:
    """Durable, or not there: after an error the caller can write it again."""
    before = path.stat().st_size if path.exists() else 0
    with path.open("ab", buffering=0) as log:  # unbuffered: a full disk leaves no bytes to write later
        try:
            left = memoryview(line)
            while left:
                left = left[log.write(left) :]
            sync(log.fileno(), path)
        except OSError:
            os.truncate(path, before)
            raise


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
