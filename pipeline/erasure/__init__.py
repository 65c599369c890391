"""Forgetting a user: out of the table and off the disk, every model that learned from them named and blocked, proved.

Owns the order of it. What is affected is listed before anything goes; the user is on the list of the forgotten before
their rows go; the proof comes last. A kill at any point is healed by the same command, which ends in the same proof.
Refuses to change weights or to take a champion out of service: both are a person's to decide, on the proof.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from pipeline import layout
from pipeline.erasure import account, derived, mirrored, raw
from pipeline.erasure.affected import Person, find, iterations
from pipeline.erasure.columns import redacted_rows
from pipeline.erasure.identifiers import Identifiers
from pipeline.erasure.proof import (
    Affected,
    ErasureProof,
    Pending,
    PendingRows,
    id_of,
    pending_name,
    pending_rows_name,
    proof_name,
    publish,
)
from pipeline.erasure.rekey import rekey
from pipeline.erasure.search import SearchResult, search
from pipeline.erasure.units import RecordTest
from pipeline.registry import versions
from pipeline.rollout import blocks
from pipeline.rollout.decision import abort
from pipeline.rollout.fold import read_state
from pipeline.rollout.propose import champion
from pipeline.storage import Store, names_nobody
from pipeline.traces import erased, sketches
from pipeline.traces.context import StageContext
from pipeline.traces.dataset_users import record_dataset_users
from pipeline.traces.lake import Lake, Redact, SweepResult, open_lake
from pipeline.traces.sources.outside import left_outside
from pipeline.traces.sources.protocol import Address
from pipeline.traces.watermark import Watermark

Log = Callable[[str], None]
Forgetter = Callable[[Store, Collection[str], Callable[[bytes], bool]], Iterator[str]]
"""Removes users, by every id that they have, from what it knows of, and texts that name them; yields the name of what
it writes anew before it does."""


def forget(
    context: StageContext,
    person: Person,
    *,
    registry_uri: str,
    now: datetime,
    others: Sequence[Forgetter] = (),
    address: Address | None = None,
) -> ErasureProof:
    """Remove the person's rows, those from `since` on where it is given; the proof.

    A user whom nothing is known of is still put on the list. `others` keep texts that this package does not know of,
    such as the evaluation: all that they have of the person goes, whatever `since` says. `address`: of the source, so
    that the proof can say what stays there. Other datasets' snapshots expire with the user's: materialising the traces
    publishes those datasets again. Raises ValueError when a record cannot be read, OSError or MLflow's error when lake
    or registry fail: run it again.
    """
    since, store, log = person.since, context.store, context.log
    log("forget: begins as soon as no run of the traces stage is under way")
    with erased.exclusive_lock(store), open_lake(context.lake) as lake:
        rekey(store, registry_uri, now, log)
        person = person.marked(erased.bind(store))
        id = id_of(store, person.marks, since)
        before = store.read(proof_name(id), ErasureProof)
        log(f"forget {id}: {derived.sweep(store)} files that killed runs left are swept")
        notes, identifiers = _listed(context, lake, person, id, registry_uri, now)
        pending = notes.pending
        rows = f"{sum(pending.rows.values())} rows over {len(pending.rows)} days"
        log(f"forget {id}: {rows}, {_summary(pending.affected)}")
        erased.add(store, erased.ErasedUser(mark=person.marks[-1], since=since, proof=id))
        log(f"forget {id}: on the list of the forgotten")
        serving = _block(context, pending.affected, id, registry_uri, now)
        log(f"forget {id}: {len(pending.affected.digests)} digests are blocked")
        notes.each(mirrored.remove(store, pending.affected.iterations))
        log(f"forget {id}: mirrors of checkpoints are cleared")
        account.unname(store, identifiers.rows)
        names = identifiers.in_bytes if since is None else names_nobody
        _rewrite_files(notes, person, identifiers, [derived.rewrite_findings, *others], names)
        log(f"forget {id}: {len(notes.pending.removed)} raw files, findings, reviews and evaluations are written anew")
        _erase(store, lake, person, notes.pending, id, identifiers)
        log(f"forget {id}: the rows are out of the table")
        record_dataset_users(store, lake)
        affected = notes.pending.affected
        leftovers = derived.holding_rows(store, (*affected.iterations, *affected.naming), affected.datasets)
        notes.add(*leftovers)
        derived.remove(store, leftovers)
        if since is None:
            notes.each(derived.redact_logs(store, identifiers))
        log(f"forget {id}: {len(leftovers)} derived files are gone")
        notes.expire()
        swept = SweepResult()
        if before is None or notes.pending.rows or notes.pending.names or affected.datasets:
            lake.expire(None)
            swept = lake.sweep(0)
        log(f"forget {id}: {swept.files} files swept, {swept.bytes:,} bytes")
        left = _left(store, lake, person, identifiers, (pending_name(id), pending_rows_name(id)))
        proof = _proof(before or _empty(id, person, notes.pending, now), notes.pending, serving, swept, left)
        learned = proof.affected.iterations
        there = (*(set(proof.outside) - mirrored.superseded(store, learned)), *mirrored.outside(store, learned))
        proof = proof.model_copy(
            update={
                "outside": _outside(store, address, there),
                "remains": (*proof.remains, *mirrored.remains(store, learned)),
            }
        )
        if before is None or proof.statement() != before.statement():
            checked = {"finished": now, "checked_files": left.files, "checked_bytes": left.bytes}
            proof = proof.model_copy(update=checked)
        else:
            proof = before
        publish(store, proof, now)
        log(f"forget {id}: the proof is written")
        store.path(pending_rows_name(id)).unlink(missing_ok=True)
        store.path(pending_name(id)).unlink(missing_ok=True)
    return proof


class _Notes:
    """The record of an erasure under way: what is about to be done stands in it before it is done."""

    def __init__(self, store: Store, id: str, pending: Pending) -> None:
        self.store, self.id, self.pending = store, id, pending

    def update(self, **fields: Any) -> None:
        updated = self.pending.model_copy(update=fields)
        if updated != self.pending or not self.store.path(pending_name(self.id)).exists():
            self.pending = updated
            self.store.write(pending_name(self.id), updated)

    def add(self, *removed: str) -> None:
        self.update(removed=tuple(sorted({*self.pending.removed, *removed})))

    def each(self, changes: Iterable[Any]) -> None:
        """Note each change as it is announced; it is made when the next one is asked for."""
        for change in changes:
            self.add(str(change))

    def expire(self) -> None:
        self.update(expiring=True)


def _listed(
    context: StageContext, lake: Lake, person: Person, id: str, registry_uri: str, now: datetime
) -> tuple[_Notes, Identifiers]:
    """What is affected, with what an earlier attempt found, on record before anything goes; and what to search for."""
    store = context.store
    new = Pending(mark=person.marks[-1], since=person.since, requested=now)
    notes = _Notes(store, id, store.read(pending_name(id), Pending) or new)
    notes.update(mark=person.marks[-1], since=person.since)
    affected = notes.pending.affected
    if not notes.pending.expiring:
        affected = affected.plus(find(store, lake, context.lake, person, registry_uri))
    rows = lake.rows_of(person.ids, person.since)
    counted = {day: account.count(lake, person, day) for day in rows}
    days = {day: account.after(store, lake, day, files, id) for day, (files, _) in counted.items()}
    known = store.read(pending_rows_name(id), PendingRows) or PendingRows()
    of_table = {row for _, ids in counted.values() for row in ids}
    identifiers = Identifiers(person.ids, {*known.rows, *of_table})
    own = raw.owned(raw.raw_files(store), RecordTest(identifiers, person.since))
    identifiers = identifiers.with_rows(own.rows)
    of_others = raw.shared(raw.raw_files(store), identifiers) | account.of_others(lake, person, identifiers.rows)
    identifiers = identifiers.with_rows((), of_others)
    heads = {*known.heads, *(head.decode("latin-1") for head in own.heads)}
    store.write(pending_rows_name(id), PendingRows(rows=tuple(sorted(identifiers.rows)), heads=tuple(sorted(heads))))
    names: dict[str, int] = {}
    if person.since is None:
        affected = affected.plus(Affected(naming=tuple(derived.naming(store, identifiers, affected.iterations))))
        names = lake.changed_by(_redact(identifiers), person.rows())
    notes.update(
        affected=affected,
        days={**notes.pending.days, **days},
        rows={**notes.pending.rows, **rows},
        names={**notes.pending.names, **names},
    )
    return notes, identifiers


def _redact(identifiers: Identifiers) -> Redact:
    return partial(redacted_rows, identifiers=identifiers)


def _rewrite_files(
    notes: _Notes, person: Person, identifiers: Identifiers, others: Sequence[Forgetter], names: Callable[[bytes], bool]
) -> None:
    """Raw files first, then what is known of other stores: each change on record before it is made."""
    store = notes.store
    known = store.read(pending_rows_name(notes.id), PendingRows) or PendingRows()
    heads = {head.encode("latin-1") for head in known.heads}
    test = RecordTest(identifiers, person.since)
    for path in raw.raw_files(store):
        notes.each(raw.rewrite(store, path, test, heads))
    for other in others:
        notes.each(other(store, person.ids, names))


def _block(context: StageContext, affected: Affected, id: str, registry_uri: str, now: datetime) -> str:
    """Block what is affected, take it out of a rollout, show it in MLflow; what is said of a champion among it."""
    if not affected.iterations:
        return ""
    store, model_name = context.store, context.recipe.base_model.name
    new_block = blocks.ErasureBlock(proof=id, digests=affected.digests, iterations=affected.iterations)
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


def _erase(store: Store, lake: Lake, person: Person, pending: Pending, id: str, identifiers: Identifiers) -> None:
    """One commit, and the accounts that follow from it. Sketches go first: whose text one is of, nothing tells."""
    sketches.forget(store.path(layout.SKETCHES))
    rows = lake.rows_of(person.ids, person.since)
    redact = _redact(identifiers) if person.since is None else None
    if rows or (redact is not None and lake.changed_by(redact)):
        reports = {day: pending.days.get(day) for day in rows}
        # A day without a report that fits gets a digest that no report has: the stage makes it again.
        digests = {day: report.digest if report else f"erased-{id}" for day, report in reports.items()}
        lake.erase(person.ids, person.since, digests, redact)
    for report in pending.days.values():
        if report is not None:
            account.settle(store, lake, report)


def _left(store: Store, lake: Lake, person: Person, identifiers: Identifiers, passed: Collection[str]) -> SearchResult:
    """What still holds the user. After a withdrawn consent files are not searched: earlier rows stay, with the id."""
    if person.since is not None:
        why = "nothing: the rows before the withdrawal stay, with the id"
        result = SearchResult(0, 0, len(identifiers), (), (why,))
        again = lake.rows_of(person.ids, person.since)
    else:
        result = search(store, identifiers, passed)
        again = {**lake.rows_of(person.ids, None), **lake.changed_by(_redact(identifiers))}
    remains = (*(f"the governed table, {day}" for day in sorted(again)), *result.remains)
    return result._replace(remains=remains)


def _outside(store: Store, address: Address | None, known: tuple[str, ...]) -> tuple[str, ...]:
    """What sources keep of the user. One that cannot be opened now is named by what was read of it last."""
    if address is None:
        return tuple(sorted({*known}))
    try:
        here = left_outside(store, address)
    except ValueError:
        label = (store.read(layout.WATERMARK, Watermark) or Watermark()).source or f"the source {address.section.kind}"
        here = f"{label}: ask its owner to delete what it has of the user"
    return tuple(sorted({*known, *([here] if here else [])}))


def _empty(id: str, person: Person, pending: Pending, now: datetime) -> ErasureProof:
    """The proof of a first erasure, before anything is in it."""
    return ErasureProof(
        id=id,
        nonce=secrets.token_hex(16),
        mark=person.marks[-1],
        since=person.since,
        requested=pending.requested,
        finished=now,
        affected=Affected(),
    )


def _proof(old: ErasureProof, pending: Pending, serving: str, swept: SweepResult, left: SearchResult) -> ErasureProof:
    """The proof; of a user who was forgotten before, the old one with what has turned up since, if anything."""
    return old.model_copy(
        update={
            "rows": {**old.rows, **pending.rows},
            "affected": old.affected.plus(pending.affected),
            "champion": serving or old.champion,
            "removed": tuple(sorted({*old.removed, *pending.removed})),
            "swept_files": old.swept_files + swept.files,
            "swept_bytes": old.swept_bytes + swept.bytes,
            "names": {**old.names, **pending.names},
            "identifiers": max(old.identifiers, left.identifiers),
            "unsearched": left.unsearched,
            "remains": left.remains,
        }
    )


def _summary(affected: Affected) -> str:
    counts = {name: len(getattr(affected, name)) for name in ("datasets", "iterations", "checkpoints", "versions")}
    return ", ".join(f"{count} {name}" for name, count in counts.items())
