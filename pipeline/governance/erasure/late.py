"""Erasures that have to be made good later: of models that were made while their data was being forgotten (every stage
that makes or promotes a model asks here), and of users whom a restored backup has again."""

import secrets
from collections.abc import Callable, Collection, Iterator
from datetime import datetime

from pipeline.core import layout
from pipeline.core.iteration import Iteration
from pipeline.core.mark_keys import key_of
from pipeline.core.storage import Store
from pipeline.governance.erasure import mirrored
from pipeline.governance.erasure.places import owners
from pipeline.governance.erasure.records import Affected, ErasureProof, proofs, publish
from pipeline.registry import versions
from pipeline.rollout.blocks import block, blocking
from pipeline.traces.context import StageContext
from pipeline.traces.erased import ErasedUser, Forgotten, add, bind, erased_users, exclusive_lock
from pipeline.traces.lake import open_lake
from pipeline.training.result import TrainingResult


def blocked_iteration(store: Store, registry_uri: str, iteration: Iteration, now: datetime) -> str:
    """Why nothing may be made of an iteration any more; "" where no erasure blocks it. What turns up of it is blocked,
    tagged and added to the proofs."""
    active_blocks = blocking(store, iteration.id)
    if not active_blocks:
        return ""
    result = store.read(iteration.path(layout.RESULT), TrainingResult)
    digests = {result.checkpoint.adapter.digest, result.checkpoint.model.digest} if result is not None else set[str]()
    registrations = versions.registered(registry_uri, iteration.model_name, [iteration.id])
    named = {f"{each.name} version {each.version}" for each in registrations}
    late = Affected(versions=tuple(sorted(named)), digests=tuple(sorted(digests)))
    for each in active_blocks:
        if not digests <= set(each.digests):
            block(store, each.model_copy(update={"digests": tuple(sorted({*each.digests, *digests}))}))
        versions.tag_blocked(registry_uri, registrations, each.proof, each.reason)
        first = store.read(layout.proof(each.proof), ErasureProof)
        if first is None:
            continue
        known = first.affected
        for proof in proofs(store):
            known = known.plus(proof.affected) if proof.mark == first.mark else known
        if known.plus(late) != known:
            new = ErasureProof(
                id=secrets.token_hex(8), mark=first.mark, follows=first.id, requested=now, finished=now, affected=late
            )  # fmt: skip
            publish(store, new, now)
    list(mirrored.remove(store, [iteration.id]))  # what a trainer that was killed put there last
    reason = active_blocks[0].reason
    return f"iteration {iteration.id} is blocked: {reason}. Materialise the traces for a new iteration."


def reapply(
    context: StageContext,
    users: Collection[ErasedUser],
    now: datetime,
    forget: Callable[[str], object],
) -> int:
    """Put these users on the list again, and forget those whose marks are found here; how many they are. `forget`:
    erases a user by id. Raises ValueError for marks of another key."""
    store = context.store
    again = list(users)
    for user in erased_users(store).users:
        if not any(store.path(name(user.proof)).exists() for name in (layout.proof, layout.pending_erasure)):
            again.append(user)
    with exclusive_lock(store):
        key = bind(store)
        if other := sorted({key_of(user.mark) for user in again} - {key.id}):
            raise ValueError(f"The list has marks of the key {', '.join(other)}, which is not in {store.keys.place}.")
        for user in again:
            add(store, user)
    listed = Forgotten(again, key)
    here = {id: entry for id in sorted(set(_ids(context))) if (entry := listed.entry(id)) is not None}
    for id in here:
        forget(id)
    for user in again:
        if not store.path(layout.proof(user.proof)).exists():
            proof = ErasureProof(id=user.proof, mark=user.mark, requested=now, finished=now)
            publish(store, proof, now)
    return len({user.mark for user in here.values()})


def _ids(context: StageContext) -> Iterator[str]:
    """The owners of rows, as the table and our own spans have them."""
    with open_lake(context.lake) as lake:
        for batch in lake.batches(list(lake.digests()), lake.snapshot, ["user_id"]):
            yield from (id for id in batch["user_id"].unique().to_pylist() if id is not None)
    yield from owners(context.store, has_export=context.recipe.traces.source.kind == "demo")
