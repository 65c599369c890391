"""After a backup was restored: users who were forgotten since are put on the list again, and forgotten where they are.

Owns the recognition of users by their marks alone, in the table and in raw files. Who is found nowhere is on the list:
rows that a source brings are rejected. Refuses to run while somebody reads: the list comes first.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator
from datetime import datetime

from pipeline.erasure import raw
from pipeline.erasure.proof import Affected, ErasureProof, pending_name, proof_name, publish
from pipeline.erasure.units import owners, records_of
from pipeline.mark_keys import key_of
from pipeline.storage import Store
from pipeline.traces.erased import ErasedUser, Forgotten, add, bind, erased_users, exclusive_lock, user_hash
from pipeline.traces.lake import LakeConfig, open_lake

NOT_HERE = "nothing, but the table and the raw files for owners of rows: the user's id is not known here"


def put_on_list(store: Store, users: Collection[ErasedUser]) -> list[ErasedUser]:
    """Put them on the list, from where they are rejected at once; the users with their marks as the keys make them.

    Raises ValueError for marks of keys that are not here: nobody would be recognised by them.
    """
    with exclusive_lock(store):
        chain = bind(store)
        missing = sorted({key_of(user.mark) for user in users} - {"", *chain.ids})
        if missing:
            raise ValueError(f"The list has marks of the key {', '.join(missing)}, which is not in {store.keys.place}.")
        raised = [user.model_copy(update={"mark": chain.raised(user.mark)}) for user in users]
        for user in raised:
            add(store, user)
    return raised


def unbegun(store: Store) -> list[ErasedUser]:
    """Who is on the list without a proof, and without the notes of an erasure under way."""
    places = (proof_name, pending_name)
    users = erased_users(store).users
    return [user for user in users if not any(store.path(name(user.proof)).exists() for name in places)]


def recognised(store: Store, config: LakeConfig, users: Collection[ErasedUser]) -> dict[str, ErasedUser]:
    """Ids, as the table or raw files have them, of those of these users who are here."""
    listed = Forgotten(users, bind(store))
    here: dict[str, ErasedUser] = {}
    for id in _ids(store, config):
        if id not in here and (entry := listed.entry(id)) is not None:
            here[id] = entry
    return here


def reapply(
    store: Store,
    config: LakeConfig,
    users: Collection[ErasedUser],
    now: datetime,
    forget: Callable[[str, datetime | None], object],
) -> int:
    """Forget these users again, under the ids of their proofs; how many were here. Killed, it is run again.

    `forget`: erases a user by id from a moment on.
    """
    raised = put_on_list(store, [*users, *unbegun(store)])
    here = recognised(store, config, raised)
    for id, user in sorted(here.items(), key=lambda each: user_hash(each[0])):
        forget(id, user.since)
    for user in raised:
        if store.read(proof_name(user.proof), ErasureProof) is None:
            proof = ErasureProof(
                id=user.proof,
                nonce=secrets.token_hex(16),
                mark=user.mark,
                since=user.since,
                requested=now,
                finished=now,
                affected=Affected(),
                unsearched=(NOT_HERE,),
            )
            publish(store, proof, now)
    return len({user.mark for user in here.values()})


def _ids(store: Store, config: LakeConfig) -> Iterator[str]:
    with open_lake(config) as lake:
        for batch in lake.batches(list(lake.digests()), lake.snapshot, ["user_id"]):
            yield from (id for id in batch["user_id"].unique().to_pylist() if id is not None)
    for value in raw.values(raw.raw_files(store)):
        for record, around in records_of(value):
            yield from owners(record, around)
