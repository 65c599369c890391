"""Anchors: the head of the log, and who was forgotten, for a place that the data root does not hold.

Owns what there is to anchor since the last time. Refuses to know the place: `assets.anchors` has Dagster's,
`pipeline.anchor_bucket` that in S3.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from pipeline import layout
from pipeline.audit.entry import Entry, Head
from pipeline.mark_keys import key_of
from pipeline.storage import Record, Store
from pipeline.traces.erased import ErasedUser, erased_users


class AnchoredHead(Record):
    """`audit/anchored.json`: the last head that was anchored, and where the log ended then. Losing it anchors anew."""

    n: int = 0
    digest: str = ""
    offset: int = 0


class Anchor(NamedTuple):
    """A head as a place outside keeps it. `at`: seconds since the epoch, by the place's clock."""

    at: float
    root: str
    log: str
    n: int
    digest: str
    place: str

    def noted(self) -> str:
        """Where and when, for a person."""
        return f"in {self.place} on {datetime.fromtimestamp(self.at, UTC):%Y-%m-%d %H:%M} UTC"


class HeadToAnchor(NamedTuple):
    """What a place outside is to keep."""

    log: str
    """Digest of the first entry: which log it is, wherever it lies."""
    head: AnchoredHead
    forgotten: tuple[ErasedUser, ...]
    """Users whose erasure was logged since the last anchor, by their marks."""


def log_identity(store: Store) -> str:
    """Digest of the first entry; "" where there is none that can be read."""
    try:
        with store.path(layout.AUDIT_LOG).open("rb") as log:
            return Entry.model_validate_json(log.readline()).digest
    except (FileNotFoundError, ValueError):
        return ""


def to_anchor(store: Store) -> HeadToAnchor | None:
    """What is not anchored yet; None when nothing is, and while marks are to be taken to a first key: the log is
    written anew then, and what was anchored would fit no more."""
    head, log = store.read(layout.AUDIT_HEAD, Head), store.path(layout.AUDIT_LOG)
    if head is None or not head.n or not log.exists():
        return None
    before = store.read(layout.ANCHORED, AnchoredHead) or AnchoredHead()
    if (before.n, before.digest) == (head.n, head.digest):
        return None
    users = erased_users(store).users
    if any(not key_of(user.mark) for user in users):
        return None
    size = log.stat().st_size
    offset = before.offset if before.n < head.n and before.offset <= size else 0
    try:
        logged = {each.subject for each in _entries(store, offset) if each.kind == "erasure"}
    except ValueError:  # another log than the one that was anchored: all of it is new
        logged = {user.proof for user in users}
    forgotten = tuple(user for user in users if user.proof in logged)
    return HeadToAnchor(log_identity(store), AnchoredHead(n=head.n, digest=head.digest, offset=size), forgotten)


def note_anchored(store: Store, anchor: HeadToAnchor) -> None:
    store.write(layout.ANCHORED, anchor.head)


def _entries(store: Store, offset: int) -> list[Entry]:
    with store.path(layout.AUDIT_LOG).open("rb") as log:
        log.seek(offset)
        return [Entry.model_validate_json(line) for line in log if line.endswith(b"\n")]
