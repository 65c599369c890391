"""Whom the traces stage has to forget: marks instead of names, and from when.

Owns the list `traces/erased.json` in the store, whose keys it is made with (`traces/marks.json`), and the lock that
keeps publication and erasure apart. Refuses to let anybody read rows while a forgotten user could not be recognised,
and to delete anything: `pipeline.erasure` does, and the map rejects such rows whenever the source brings them again.
"""

from __future__ import annotations

import fcntl
import hashlib
import unicodedata
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from datetime import datetime

from pipeline import layout
from pipeline.mark_keys import KeyChain, key_of
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


class MarkBinding(Record):
    """`traces/marks.json`: which keys the marks of this data root are made with."""

    key: str
    """Id of the newest one."""
    is_whole: bool = False
    """Every mark is of that key: `pipeline.erasure.rekey` has seen to it."""
    lost: tuple[str, ...] = ()
    """Ids of keys that a person said are lost."""
    accepted: tuple[str, ...] = ()
    """Of `lost`, those whose users a person has forgotten again, as far as they are known."""


class Forgotten:
    """Who is forgotten, to be asked about each user of a row. It holds keys where there is anybody."""

    def __init__(self, users: Iterable[ErasedUser] = (), chain: KeyChain | None = None) -> None:
        self.users = tuple(users)
        self._chain = chain
        self._by_mark = {user.mark: user for user in self.users}
        assert chain is not None or not self.users, "nobody is recognised without keys"

    def __bool__(self) -> bool:
        return bool(self.users)

    def entry(self, user_id: str | None) -> ErasedUser | None:
        """Of a user as the source or the table writes the id."""
        return self.entry_of_hash(user_hash(user_id)) if self.users and user_id is not None else None

    def entry_of_hash(self, hash: str) -> ErasedUser | None:
        if self._chain is None:
            return None
        entries = [user for mark in self._chain.marks(hash) if (user := self._by_mark.get(mark))]
        return max(entries, key=reach, default=None)


NOBODY = Forgotten()


def reach(user: ErasedUser) -> tuple[bool, float]:
    """Of two entries on one user the larger forgets more."""
    return user.since is None, 0.0 if user.since is None else -user.since.timestamp()


def user_hash(user_id: str) -> str:
    """What marks are made of. Anybody with a list of ids can make it too: it may stand only beside the user's rows."""
    same = unicodedata.normalize("NFC", user_id)  # an accent is a character of its own in the other form
    return hashlib.sha256(b"erased\x00" + str(pseudonym(same)).encode()).hexdigest()[:32]


def erased_users(store: Store) -> ErasedUsers:
    return store.read(layout.ERASED, ErasedUsers) or ErasedUsers()


def forgotten(store: Store) -> Forgotten:
    """Who is forgotten. Raises ValueError where one of them could not be recognised: no row may be read then."""
    users = erased_users(store).users
    return Forgotten(users, recognising_keys(store)) if users else NOBODY


def recognising_keys(store: Store, *, forgetting: bool = False) -> KeyChain:
    """The keys, with which every user of the list is recognised.

    `forgetting`: nobody is to be let in, and users whose key a person said is lost can be forgotten again. Raises
    ValueError where keys are missing.
    """
    binding = store.read(layout.MARKS, MarkBinding)
    marks = [user.mark for user in erased_users(store).users]
    keys = {key for key in [*map(key_of, marks), binding.key if binding else ""] if key}
    lost = set(binding.lost if forgetting else binding.accepted) if binding else set[str]()
    chain = store.keys.chain(store.root, new=not keys - lost)
    missing = sorted(keys - lost - set(chain.ids))
    if missing:
        users = sum(key_of(mark) in missing for mark in marks)
        raise ValueError(
            f"{store.root} has marks of the key {', '.join(missing)}, which is not in {store.keys.place} (that has "
            f"{', '.join(chain.ids)}): {users} forgotten users would not be recognised, so no row is read. Restore the "
            "key, oldest first. If it is lost: docs/operations.md, Keys."
        )
    return chain


def bind(store: Store) -> KeyChain:
    """The keys to make marks with, on record before the first mark is."""
    chain = recognising_keys(store, forgetting=True)
    binding = store.read(layout.MARKS, MarkBinding)
    if binding is None:
        places = (layout.ERASED, layout.ERASURES, layout.DATASET_USERS)
        binding = MarkBinding(key=chain.newest, is_whole=not any(store.path(name).exists() for name in places))
        store.write(layout.MARKS, binding)
    elif binding.key != chain.newest:
        store.write(layout.MARKS, binding.model_copy(update={"key": chain.newest, "is_whole": False}))
    return chain


@contextmanager
def shared_lock(store: Store) -> Generator[Forgotten]:
    """Who is forgotten, which stays as it is until the block ends: write and commit rows inside, and only if it is
    still the list that they were judged by. Any number of processes may; nobody is forgotten meanwhile."""
    with held_lock(store):
        yield forgotten(store)


@contextmanager
def held_lock(store: Store) -> Generator[None]:
    """The same lock for who recognises nobody and has no keys: a task of a stage that asked, the pod of a gate."""
    with _lock(store, fcntl.LOCK_SH):
        yield


@contextmanager
def exclusive_lock(store: Store) -> Generator[None]:
    """Alone with the table: waits for those who publish, and keeps others out."""
    with _lock(store, fcntl.LOCK_EX):
        yield


def add(store: Store, user: ErasedUser) -> None:
    """Put a user on the list, inside `exclusive_lock`. Of two entries on one user, the one that forgets more stands."""
    known = {each.mark: each for each in erased_users(store).users}
    before = known.get(user.mark)
    if before is None or reach(user) > reach(before):
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
