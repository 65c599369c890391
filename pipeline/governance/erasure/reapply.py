"""After a restore from a backup: users forgotten since then are put on the list again, and forgotten where their marks
are found, in the table and in our own spans."""

from collections.abc import Callable, Collection, Iterator
from datetime import datetime

from pipeline.core import layout
from pipeline.core.mark_keys import key_of
from pipeline.core.storage import Store
from pipeline.governance.erasure.proof import ErasureProof, publish
from pipeline.governance.erasure.served import owners
from pipeline.traces.context import StageContext
from pipeline.traces.erased import ErasedUser, Forgotten, add, bind, erased_users, exclusive_lock
from pipeline.traces.lake import open_lake


def put_on_list(store: Store, users: Collection[ErasedUser]) -> None:
    """Put them on the list: their rows are rejected from now on. Raises ValueError for marks of another key."""
    with exclusive_lock(store):
        key = bind(store)
        if other := sorted({key_of(user.mark) for user in users} - {key.id}):
            raise ValueError(f"The list has marks of the key {', '.join(other)}, which is not in {store.keys.place}.")
        for user in users:
            add(store, user)


def reapply(
    context: StageContext,
    users: Collection[ErasedUser],
    now: datetime,
    forget: Callable[[str, datetime | None], object],
) -> int:
    """Forget these users again; how many were here. `forget`: erases a user by id from a moment on."""
    store = context.store
    again = list(users)
    for user in erased_users(store).users:
        if not any(store.path(name(user.proof)).exists() for name in (layout.proof, layout.pending_erasure)):
            again.append(user)
    put_on_list(store, again)
    listed = Forgotten(again, bind(store))
    here = {id: entry for id in sorted(set(_ids(context))) if (entry := listed.entry(id)) is not None}
    for id, user in here.items():
        forget(id, user.since)
    for user in again:
        if not store.path(layout.proof(user.proof)).exists():
            proof = ErasureProof(id=user.proof, mark=user.mark, since=user.since, requested=now, finished=now)
            publish(store, proof, now)
    return len({user.mark for user in here.values()})


def _ids(context: StageContext) -> Iterator[str]:
    """The owners of rows, as the table and our own spans have them."""
    with open_lake(context.lake) as lake:
        for batch in lake.batches(list(lake.digests()), lake.snapshot, ["user_id"]):
            yield from (id for id in batch["user_id"].unique().to_pylist() if id is not None)
    yield from owners(context.store, has_export=context.recipe.traces.source.kind == "demo")
