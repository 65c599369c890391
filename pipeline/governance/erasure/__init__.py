"""Forgetting a user: their rows leave all places that we write, models that learned from them are blocked, and a proof
says so. After a kill the same command ends in the same proof. Weights and a champion in service stay."""

import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import NamedTuple

from pipeline.core import layout
from pipeline.core.iteration import Iteration
from pipeline.core.mark_keys import key_of
from pipeline.core.objects import kept_versions
from pipeline.core.removal import Place, of_files
from pipeline.core.storage import Store
from pipeline.governance.erasure import mirrored, places, tables
from pipeline.governance.erasure.affected import find, iterations
from pipeline.governance.erasure.records import (
    TABLE,
    Affected,
    Counts,
    ErasureProof,
    Person,
    id_of,
    merged,
    proofs,
    publish,
)
from pipeline.registry import versions
from pipeline.rewards import findings, reviews
from pipeline.rollout.decision import abort
from pipeline.rollout.fold import read_state
from pipeline.rollout.propose import champion
from pipeline.rollout.record import ErasureBlock, block, blocked, blocking, blocks
from pipeline.selection import draw
from pipeline.traces import erased
from pipeline.traces.context import StageContext
from pipeline.traces.lake import Lake, open_lake
from pipeline.traces.sources.protocol import Address
from pipeline.training.result import TrainingResult

Keeper = Callable[[Store, Collection[str]], list[Place]]
"""The places of a package above this one, such as the evaluation, that hold rows of these principals."""


class Preview(NamedTuple):
    """What an erasure would do now."""

    places: Counts
    affected: Affected


def preview(context: StageContext, person: Person, registry_uri: str, keepers: Sequence[Keeper] = ()) -> Preview:
    """Count what `forget` would remove, place by place. Changes nothing."""
    store = context.store
    if store.path(layout.MARKS).exists():
        person = person.marked(erased.recognising_key(store))
    if context.lake.catalogue == "sqlite" and not store.path(layout.LAKE).exists():
        return Preview(_counted(_places(context, None, person, Affected(), keepers)), Affected())
    with open_lake(context.lake) as lake:
        affected = find(store, lake, context.lake, person, registry_uri)
        return Preview(_counted(_places(context, lake, person, affected, keepers)), affected)


def forget(
    context: StageContext,
    person: Person,
    *,
    registry_uri: str,
    now: datetime,
    keepers: Sequence[Keeper] = (),
    address: Address | None = None,
) -> ErasureProof:
    """Remove the person's rows; the proof, a new one each time.

    A user whom nothing is known of is still put on the list. `address`: of the source, so that the proof can say what
    stays there. Other datasets' snapshots expire with the user's: materialising the traces publishes those datasets
    again. Raises ValueError when a record cannot be read, OSError or MLflow's error when lake or registry fail: run it
    again.
    """
    store, log = context.store, context.log
    log("forget: begins as soon as no run of the traces stage is under way")
    with erased.exclusive_lock(store), open_lake(context.lake) as lake:
        person = person.marked(erased.bind(store))
        id = id_of(store, person.mark)
        if (done := store.read(layout.proof(id), ErasureProof)) is not None:  # killed right after it was written
            return publish(store, done, now)
        log(f"forget {id}: {tables.sweep(store)} files that killed runs left are swept")
        erased.add(store, erased.ErasedUser(mark=person.mark, proof=id))
        listed = next(each.proof for each in erased.erased_users(store).users if each.mark == person.mark)
        # What is affected, with what an earlier attempt found, is on record before anything goes.
        new = ErasureProof(id=id, mark=person.mark, requested=now, finished=now)
        proof = store.read(layout.pending_erasure(id), ErasureProof) or new
        affected = proof.affected.plus(find(store, lake, context.lake, person, registry_uri))
        held = _places(context, lake, person, affected, keepers)
        proof = proof.model_copy(update={"affected": affected, "places": merged(proof.places, _counted(held))})
        store.write(layout.pending_erasure(id), proof)
        rows = sum(rows for counts in proof.places.values() for rows in counts.values())
        names = ("datasets", "iterations", "checkpoints", "versions")
        counts = ", ".join(f"{len(getattr(affected, name))} {name}" for name in names)
        log(f"forget {id}: {rows} rows and files in {len(proof.places)} places, {counts}")
        serving = _block(context, registry_uri, affected, listed, now)
        log(f"forget {id}: {len(affected.digests)} digests are blocked")
        for place in held:
            place.remove()
            log(f"forget {id}: gone from {place.name}")
        if listed == id or TABLE in proof.places or affected.datasets:
            lake.expire(None)
            swept = lake.sweep(0)
            log(f"forget {id}: {swept.files} files swept, {swept.bytes:,} bytes")
        in_source, after = places.in_source(store, person, address), _counted(held)  # rows that came meanwhile
        left = [f"{place}, {name}: {rows} rows" for place, counts in after.items() for name, rows in counts.items()]
        left += [f"{lake.uri}: {line}"] if (line := kept_versions(lake.uri)) else []
        earlier = [each for each in proofs(store) if each.mark == person.mark]
        update = {
            "finished": now,
            "follows": max(earlier, key=lambda each: each.finished).id if earlier else "",
            "champion": serving,
            "remains": (
                *left, *mirrored.remains(store, affected.iterations), *reviews.unreadable(store), *in_source.remains
            ),
            "outside": (*mirrored.outside(store, affected.iterations), *in_source.outside),
        }  # fmt: skip
        return publish(store, proof.model_copy(update=update), now)


def _places(
    context: StageContext,
    lake: Lake | None,
    person: Person,
    affected: Affected,
    keepers: Sequence[Keeper],
) -> list[Place]:
    """Every place that may hold rows of the person, in the order of removal."""
    store, has_export = context.store, context.recipe.traces.source.kind == "demo"
    served_traces, served = places.served(store, person, has_export)
    traces = places.traces_of(lake, person) if lake is not None else set[str]()
    files = [
        mirrored.place(store, affected.iterations),
        places.ledgers(store, {*traces, *served_traces}),
        *served,
        of_files("findings of judges and verifiers", partial(findings.removals, store, person.ids)),
        of_files("review samples and sheets", partial(reviews.removals, store, person.principals)),
        of_files("answers to logged prompts", partial(draw.removals, store, person.principals)),
        *(place for keeper in keepers for place in keeper(store, person.principals)),
    ]
    if lake is None:
        return files
    made = tables.place(store, person.principals, affected.iterations)
    scratch = tables.scratch(store, affected.iterations, affected.datasets)
    return [*files, places.table(lake, person), made, scratch]


def _block(context: StageContext, registry_uri: str, affected: Affected, id: str, now: datetime) -> str:
    """Block what is affected, take it out of a rollout, show it in MLflow; what is said of a champion among it."""
    if not affected.iterations:
        return ""
    store, model_name = context.store, context.recipe.base_model.name
    before = next((each for each in blocks(store) if each.proof == id), None)
    new_block = ErasureBlock(
        proof=id,
        digests=tuple(sorted({*affected.digests, *(before.digests if before else ())})),
        iterations=tuple(sorted({*affected.iterations, *(before.iterations if before else ())})),
    )
    block(store, new_block)
    ours = [each for each in iterations(store) if each.id in affected.iterations]
    serving = ""
    for name in sorted({model_name, *(each.model_name for each in ours)}):
        state = read_state(store, name)
        if state.proposal is not None and (reason := blocked(store, state.proposal.version)):
            abort(store, name, reason, now.timestamp())
        rows = versions.registered(registry_uri, name, affected.iterations)
        versions.tag_blocked(registry_uri, rows, id, new_block.reason)
        champion_state = champion(store, name)
        if champion_state is not None and champion_state.model.digest in affected.digests:
            serving = f"{name} version {champion_state.version} is the champion and serves on; replace it to end that"
    return serving


def _counted(held: Sequence[Place]) -> Counts:
    return {place.name: counts for place in held if (counts := place.count())}


def blocked_iteration(store: Store, registry_uri: str, iteration: Iteration, now: datetime) -> str:
    """Why nothing may be made of an iteration any more; "" where no erasure blocks it. Stages that make or promote a
    model ask here: what was made while its data was being forgotten is blocked, tagged and added to the proofs."""
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
    users: Collection[erased.ErasedUser],
    now: datetime,
    erase: Callable[[str], object],
) -> int:
    """After a backup was restored that has them again: put these users on the list, and forget those whose marks are
    found here; how many they are. `erase`:
    forgets a user by id. Raises ValueError for marks of another key."""
    store = context.store
    again = list(users)
    for user in erased.erased_users(store).users:
        if not any(store.path(name(user.proof)).exists() for name in (layout.proof, layout.pending_erasure)):
            again.append(user)
    with erased.exclusive_lock(store):
        key = erased.bind(store)
        if other := sorted({key_of(user.mark) for user in again} - {key.id}):
            raise ValueError(f"The list has marks of the key {', '.join(other)}, which is not in {store.keys.place}.")
        for user in again:
            erased.add(store, user)
    listed = erased.Forgotten(again, key)
    here = {id: entry for id in sorted(set(_ids(context))) if (entry := listed.entry(id)) is not None}
    for id in here:
        erase(id)
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
    yield from places.owners(context.store, has_export=context.recipe.traces.source.kind == "demo")
