"""Forgetting a user: their rows leave all places that we write, models that learned from them are blocked, and a proof
says so. After a kill the same command ends in the same proof. Weights and a champion in service stay."""

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import NamedTuple

from pipeline.core import layout
from pipeline.core.removal import Place, of_files
from pipeline.core.storage import Store
from pipeline.governance.erasure import account, mirrored, remaining, tables
from pipeline.governance.erasure.affected import find, iterations
from pipeline.governance.erasure.owner import Person
from pipeline.governance.erasure.proof import (
    TABLE,
    Affected,
    Counts,
    ErasureProof,
    Pending,
    id_of,
    merged,
    newest,
    publish,
)
from pipeline.governance.erasure.served import ServedRows
from pipeline.registry import versions
from pipeline.rewards import findings, reviews
from pipeline.rollout import blocks
from pipeline.rollout.decision import abort
from pipeline.rollout.fold import read_state
from pipeline.rollout.propose import champion
from pipeline.selection import draw
from pipeline.traces import erased
from pipeline.traces.context import StageContext
from pipeline.traces.dataset_users import record_dataset_users
from pipeline.traces.lake import Lake, SweepResult, open_lake
from pipeline.traces.records import DayReport
from pipeline.traces.sources.protocol import Address

Log = Callable[[str], None]
VERSIONS_KEPT = (
    "the bucket keeps versions, and those of deleted files stay. Expire noncurrent versions by a lifecycle rule"
)
Days = Mapping[str, DayReport | None]
Keeper = Callable[[Store, Collection[str]], list[Place]]
"""The places of a package above this one, such as the evaluation, that hold rows of these principals."""


class Preview(NamedTuple):
    """What an erasure would do now."""

    places: Counts
    affected: Affected


class _Erasure(NamedTuple):
    """What is to be forgotten, and who else keeps rows."""

    context: StageContext
    person: Person
    registry_uri: str
    keepers: Sequence[Keeper]


def preview(context: StageContext, person: Person, registry_uri: str, keepers: Sequence[Keeper] = ()) -> Preview:
    """Count what `forget` would remove, place by place. Changes nothing."""
    store = context.store
    if store.path(layout.MARKS).exists():
        person = person.marked(erased.recognising_key(store))
    work = _Erasure(context, person, registry_uri, keepers)
    if context.lake.catalogue == "sqlite" and not store.path(layout.LAKE).exists():
        return Preview(_counted(_beside_the_lake(work, set(), Affected())), Affected())
    with open_lake(context.lake) as lake:
        affected = find(store, lake, context.lake, person, registry_uri)
        return Preview(_counted(_places(work, lake, affected, {})), affected)


def forget(
    context: StageContext,
    person: Person,
    *,
    registry_uri: str,
    now: datetime,
    keepers: Sequence[Keeper] = (),
    address: Address | None = None,
) -> ErasureProof:
    """Remove the person's rows, those from `since` on where it is given; the proof, a new one each time.

    A user whom nothing is known of is still put on the list. What was said or found of the person's rows goes whatever
    `since` says. `address`: of the source, so that the proof can say what stays there. Other datasets' snapshots expire
    with the user's: materialising the traces publishes those datasets again. Raises ValueError when a record cannot be
    read, OSError or MLflow's error when lake or registry fail: run it again.
    """
    store, log = context.store, context.log
    log("forget: begins as soon as no run of the traces stage is under way")
    with erased.exclusive_lock(store), open_lake(context.lake) as lake:
        person = person.marked(erased.bind(store))
        work = _Erasure(context, person, registry_uri, keepers)
        id = id_of(store, person.mark, person.since)
        if (done := store.read(layout.proof(id), ErasureProof)) is not None:  # killed right after it was written
            return _finished(store, done, now)
        log(f"forget {id}: {tables.sweep(store)} files that killed runs left are swept")
        erased.add(store, erased.ErasedUser(mark=person.mark, since=person.since, proof=id))
        listed = next(
            each for each in erased.erased_users(store).users if each.mark == person.mark
        )  # maybe an older one
        notes, places = _listed(work, lake, id, listed.proof, now)
        affected = notes.affected
        rows = sum(rows for counts in notes.places.values() for rows in counts.values())
        names = ("datasets", "iterations", "checkpoints", "versions")
        counts = ", ".join(f"{len(getattr(affected, name))} {name}" for name in names)
        log(f"forget {id}: {rows} rows and files in {len(notes.places)} places, {counts}")
        serving = _block(work, affected, listed.proof, now)
        log(f"forget {id}: {len(affected.digests)} digests are blocked")
        for place in places:
            place.remove()
            log(f"forget {id}: gone from {place.name}")
        swept = SweepResult()
        if listed.proof == id or TABLE in notes.places or affected.datasets:
            record_dataset_users(store, lake)
            store.write(layout.pending_erasure(id), notes.model_copy(update={"expiring": True}))
            lake.expire(None)
            swept = lake.sweep(0)
        log(f"forget {id}: {swept.files} files swept, {swept.bytes:,} bytes")
        versions_kept = (f"{lake.uri}: {VERSIONS_KEPT}",) if lake.keeps_versions() else ()
        mirrors, own = mirrored.remains(store, affected.iterations), reviews.unreadable(store)
        in_source, after = remaining.in_source(store, person, address), _counted(places)  # rows that came meanwhile
        left = [f"{place}, {name}: {rows} rows" for place, held in after.items() for name, rows in held.items()]
        proof = ErasureProof(
            id=id,
            mark=person.mark,
            since=person.since,
            requested=notes.requested,
            finished=now,
            follows=before.id if (before := newest(store, person.mark)) else "",
            places=notes.places,
            affected=affected,
            champion=serving,
            swept_files=swept.files,
            swept_bytes=swept.bytes,
            remains=(*left, *versions_kept, *mirrors, *own, *in_source.remains),
            outside=(*mirrored.outside(store, affected.iterations), *in_source.outside),
        )
        return _finished(store, proof, now)


def _places(work: _Erasure, lake: Lake, affected: Affected, days: Days) -> list[Place]:
    """Every place that may hold rows of the person, in the order of removal. `days`: the reports after it."""
    store, person = work.context.store, work.person
    table = Place(
        TABLE,
        lambda: {day: files.total() for day, files in account.count(lake, person).items()},
        lambda: _erase_rows(store, lake, person, days),
    )
    made = tables.place(store, person.principals, affected.iterations)
    scratch = tables.scratch(store, affected.iterations, affected.datasets)
    return [*_beside_the_lake(work, account.traces(lake, person), affected), table, made, scratch]


def _beside_the_lake(work: _Erasure, traces: Collection[str], affected: Affected) -> list[Place]:
    store, person = work.context.store, work.person
    served = ServedRows(store, person, has_export=work.context.recipe.traces.source.kind == "demo")
    return [
        mirrored.place(store, affected.iterations),
        account.ledgers(store, {*traces, *served.traces}),
        *served.places(),
        of_files("findings of judges and verifiers", partial(findings.removals, store, person.ids)),
        of_files("review samples and sheets", partial(reviews.removals, store, person.principals)),
        of_files("answers to logged prompts", partial(draw.removals, store, person.principals)),
        *(place for keeper in work.keepers for place in keeper(store, person.principals)),
    ]


def _listed(work: _Erasure, lake: Lake, id: str, listed: str, now: datetime) -> tuple[Pending, list[Place]]:
    """What is affected, with what an earlier attempt found, on record before anything goes; and where it goes from."""
    context, store, person = work.context, work.context.store, work.person
    new = Pending(mark=person.mark, since=person.since, requested=now)
    notes = store.read(layout.pending_erasure(id), Pending) or new
    affected = notes.affected
    if not notes.expiring:
        affected = affected.plus(find(store, lake, context.lake, person, work.registry_uri))
    counted = account.count(lake, person)
    after = {day: account.after(store, lake, day, files, listed) for day, files in counted.items()}
    days = {**notes.days, **after}
    places = _places(work, lake, affected, days)
    update = {"affected": affected, "days": days, "places": merged(notes.places, _counted(places))}
    notes = notes.model_copy(update=update)
    store.write(layout.pending_erasure(id), notes)
    return notes, places


def _block(work: _Erasure, affected: Affected, id: str, now: datetime) -> str:
    """Block what is affected, take it out of a rollout, show it in MLflow; what is said of a champion among it."""
    if not affected.iterations:
        return ""
    store, registry_uri = work.context.store, work.registry_uri
    model_name = work.context.recipe.base_model.name
    before = next((each for each in blocks.blocks(store) if each.proof == id), None)
    new_block = blocks.ErasureBlock(
        proof=id,
        digests=tuple(sorted({*affected.digests, *(before.digests if before else ())})),
        iterations=tuple(sorted({*affected.iterations, *(before.iterations if before else ())})),
    )
    blocks.block(store, new_block)
    ours = [each for each in iterations(store) if each.id in affected.iterations]
    serving = ""
    for name in sorted({model_name, *(each.model_name for each in ours)}):
        state = read_state(store, name)
        if state.proposal is not None and (reason := blocks.blocked(store, state.proposal.version)):
            abort(store, name, reason, now.timestamp())
        rows = versions.registered(registry_uri, name, affected.iterations)
        versions.tag_blocked(registry_uri, rows, id, new_block.reason)
        champion_state = champion(store, name)
        if champion_state is not None and champion_state.model.digest in affected.digests:
            serving = f"{name} version {champion_state.version} is the champion and serves on; replace it to end that"
    return serving


def _erase_rows(store: Store, lake: Lake, person: Person, days: Days) -> None:
    """One commit, and the accounts that follow from it."""
    rows = lake.count(person.rows())
    if rows:
        # A day without a report that fits gets a digest that no report has: the stage makes it again.
        reports = {day: days.get(day) for day in rows}
        digests = {day: each.digest if each else f"erased-{secrets.token_hex(8)}" for day, each in reports.items()}
        lake.erase(person.rows(), digests)
    for report in days.values():
        if report is not None:
            account.settle(store, lake, report)


def _finished(store: Store, proof: ErasureProof, now: datetime) -> ErasureProof:
    proof = publish(store, proof, now)
    store.path(layout.pending_erasure(proof.id)).unlink(missing_ok=True)
    return proof


def _counted(places: Sequence[Place]) -> Counts:
    return {place.name: counts for place in places if (counts := place.count())}
