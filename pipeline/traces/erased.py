"""Whom the traces stage has to forget: marks instead of names, and from when.

Owns the list `traces/erased.json` in the store, and the lock that keeps publication and erasure apart. Refuses to
delete anything: `pipeline.erasure` does, and the map rejects such rows whenever the source brings them again.
"""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime

from pipeline import layout
from pipeline.storage import Record, Store
from pipeline.traces.pii import pseudonym


class ErasedUser(Record):
    """One forgotten user. `since`: only rows from then on (withdrawn consent); None: all of them."""

    mark: str
    since: datetime | None
    proof: str
    """Id of the proof record, `erasures/<proof>.json`."""


class ErasedUsers(Record):
    users: tuple[ErasedUser, ...] = ()

    @property
    def since_by_mark(self) -> dict[str, datetime | None]:
        """As the gates take it."""
        return {user.mark: user.since for user in self.users}


def user_hash(user_id: str) -> str:
    """What stands for a forgotten user: enough to know the user again, as the source or as the table writes it."""
    return hashlib.sha256(b"erased\x00" + str(pseudonym(user_id)).encode()).hexdigest()[:32]


def erased_users(store: Store) -> ErasedUsers:
    return store.read(layout.ERASED, ErasedUsers) or ErasedUsers()


@contextmanager
def shared_lock(store: Store) -> Generator[ErasedUsers]:
    """The list, which stays as it is until the block ends: write and commit rows inside, and only if it is still the
    list that they were judged by. Any number of processes may; nobody is forgotten meanwhile."""
    with _lock(store, fcntl.LOCK_SH):
        yield erased_users(store)


@contextmanager
def exclusive_lock(store: Store) -> Generator[None]:
    """Alone with the table: waits for those who publish, and keeps others out."""
    with _lock(store, fcntl.LOCK_EX):
        yield


def add(store: Store, user: ErasedUser) -> None:
    """Put a user on the list, inside `exclusive_lock`. Of two entries on one user, the one that forgets more stands."""
    known = {each.mark: each for each in erased_users(store).users}
    before = known.get(user.mark)
    if before is None or (before.since is not None and (user.since is None or user.since < before.since)):
        users = {**known, user.mark: user}.values()
        store.write(layout.ERASED, ErasedUsers(users=tuple(sorted(users, key=lambda each: each.mark))))


@contextmanager
def _lock(store: Store, how: int) -> Generator[None]:
    """The kernel drops it with the process."""
    path = store.path(layout.ERASED_LOCK)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        fcntl.flock(handle, how)
        yield
