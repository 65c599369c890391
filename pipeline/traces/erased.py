"""The forgotten users (`traces/erased.json`) as marks, the id of their key (`traces/marks.json`), and the lock between
publication and erasure. No row is read while a forgotten user could not be recognised."""

import fcntl
import hashlib
import unicodedata
from collections.abc import Generator, Iterable
from contextlib import AbstractContextManager, contextmanager

from pipeline.core import layout
from pipeline.core.mark_keys import MarkKey, key_of
from pipeline.core.storage import Record, Store, locked
from pipeline.traces.pii import pseudonym


class ErasedUser(Record):
    mark: str
    proof: str
    """Id of the proof record, `erasures/<proof>.json`."""


class ErasedUsers(Record):
    users: tuple[ErasedUser, ...] = ()


class MarkBinding(Record):
    key: str


class Forgotten:
    def __init__(self, users: Iterable[ErasedUser] = (), key: MarkKey | None = None) -> None:
        self.users = tuple(users)
        self._key = key
        self._by_mark = {user.mark: user for user in self.users}
        assert key is not None or not self.users, "no user is recognised without the key"

    def __bool__(self) -> bool:
        return bool(self.users)

    def entry(self, user_id: str | None) -> ErasedUser | None:
        """`user_id`: as the source or the table writes it."""
        return self.entry_of_hash(user_hash(user_id)) if self.users and user_id is not None else None

    def entry_of_hash(self, hash: str) -> ErasedUser | None:
        return None if self._key is None else self._by_mark.get(self._key.mark(hash))


NOBODY = Forgotten()


def user_hash(user_id: str) -> str:
    """Marks are made of it. Who has a list of ids can make it too, so it is kept only with the user's rows."""
    same = unicodedata.normalize("NFC", user_id)  # an accent is a character of its own in the other form
    return hashlib.sha256(b"erased\x00" + str(pseudonym(same)).encode()).hexdigest()[:32]


def erased_users(store: Store) -> ErasedUsers:
    return store.read(layout.ERASED, ErasedUsers) or ErasedUsers()


def forgotten(store: Store) -> Forgotten:
    """Raises ValueError where one of them could not be recognised: no row may be read then."""
    users = erased_users(store).users
    return Forgotten(users, recognising_key(store)) if users else NOBODY


def recognising_key(store: Store) -> MarkKey:
    """The key of every user of the list. Raises ValueError where it is another one or missing."""
    binding = store.read(layout.MARKS, MarkBinding)
    marks = [user.mark for user in erased_users(store).users]
    wanted = {*map(key_of, marks), *([binding.key] if binding else [])}
    key = store.keys.key(store.root, new=not wanted)
    if missing := sorted(wanted - {key.id}):
        raise ValueError(
            f"{store.root} has marks of the key {', '.join(missing)}, and {store.keys.place} has {key.id}: "
            f"{len(marks)} forgotten users would not be recognised, so no row is read. Restore the key "
            "(docs/operations.md, Keys)."
        )
    return key


def bind(store: Store) -> MarkKey:
    """The key to make marks with, recorded before the first mark."""
    key = recognising_key(store)
    if store.read(layout.MARKS, MarkBinding) is None:
        store.write(layout.MARKS, MarkBinding(key=key.id))
    return key


@contextmanager
def shared_lock(store: Store) -> Generator[Forgotten]:
    """No user is forgotten until the block ends: write and commit rows inside. Any number of processes may hold it."""
    with held_lock(store):
        yield forgotten(store)


def held_lock(store: Store) -> AbstractContextManager[None]:
    """`shared_lock` without the key: for a task of a stage, or the pod of a gate."""
    return locked(store.path(layout.ERASED_LOCK), fcntl.LOCK_SH)


def exclusive_lock(store: Store) -> AbstractContextManager[None]:
    """Waits for those who publish, and keeps others out."""
    return locked(store.path(layout.ERASED_LOCK))


def add(store: Store, user: ErasedUser) -> None:
    """Put a user on the list, inside `exclusive_lock`; one who is there stays as they are."""
    erased_before = erased_users(store).users
    if user.mark not in {each.mark for each in erased_before}:
        store.write(layout.ERASED, ErasedUsers(users=tuple(sorted([*erased_before, user], key=lambda each: each.mark))))
