"""Forgetting a user: out of the table and off the disk, every model that learned from them named and blocked, proved.

Owns the order of it. What is affected is listed before anything goes; the user is on the list of the forgotten before
their rows go; the proof comes last. A kill at any point is healed by the same command, which ends in the same proof.
Refuses to change weights or to take a champion out of service: both are a person's to decide, on the proof.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime

from pipeline import audit, layout
from pipeline.erasure import account
from pipeline.erasure.affected import Person, find, iterations
from pipeline.erasure.derived import holding_rows, remove, rewrite_findings, rewrite_raw, unfinished
from pipeline.erasure.proof import Affected, ErasureProof, Pending, pending_name, proof_id, proof_name
from pipeline.erasure.search import SearchResult, search
from pipeline.registry import versions
from pipeline.rollout import blocks
from pipeline.rollout.decision import abort
from pipeline.rollout.fold import read_state
from pipeline.rollout.propose import champion
from pipeline.storage import Store, digest_json
from pipeline.traces import erased
from pipeline.traces.context import StageContext
from pipeline.traces.dataset_users import record_dataset_users
from pipeline.traces.lake import Lake, SweepResult, open_lake
from pipeline.traces.pii import pseudonym
from pipeline.traces.sources.outside import left_outside
from pipeline.traces.sources.protocol import Address
from pipeline.traces.watermark import Watermark

Log = Callable[[str], None]
Forgetter = Callable[[Store, Collection[str]], list[str]]
"""Removes users, by every id that they have, from what it knows of; the names of what it wrote anew."""


def forget(
    context: StageContext,
    user_id: str,
    *,
    since: datetime | None = None,
    tracking_uri: str,
    now: datetime,
    others: Sequence[Forgetter] = (),
    address: Address | None = None,
) -> ErasureProof:
    """Remove the user's rows, those from `since` on where it is given (UTC unless it says otherwise); the proof.

    `user_id` is the source's id or the table's pseudonym of it. A user whom nothing is known of is still put on the
    list. `others` keep texts that this package does not know of, such as the evaluation: all that they have of the
    person goes, whatever `since` says. `address`: of the source, so that the proof can say what stays there. Other
    datasets' snapshots expire with the user's: materialising the traces publishes those datasets again. Raises
    ValueError when a record cannot be read, OSError or MLflow's error when lake or registry fail: run it again.
    """
    if not user_id.strip():
        raise ValueError("The user id is empty. Give the id under which the source has the user's traces.")
    since = since.replace(tzinfo=UTC) if since is not None and since.tzinfo is None else since
    person = Person(frozenset({user_id, str(pseudonym(user_id))}), erased.user_hash(user_id), since)
    id, store, log = proof_id(person.user_hash, since), context.store, context.log
    log(f"forget {id}: begins as soon as no run of the traces stage is under way")
    with erased.exclusive_lock(store), open_lake(context.lake) as lake:
        before = store.read(proof_name(id), ErasureProof)
        pending, traces = _listed(context, lake, person, tracking_uri, now)
        rows = f"{sum(pending.rows.values())} rows over {len(pending.rows)} days"
        log(f"forget {id}: {rows}, {_summary(pending.affected)}")
        erased.add(store, erased.ErasedUser(mark=person.user_hash, since=since, proof=id))
        log(f"forget {id}: on the list of the forgotten")
        serving = _block(context, pending.affected, id, tracking_uri, now)
        log(f"forget {id}: {len(pending.affected.digests)} digests are blocked")
        account.unname(store, traces)
        pending = _noted(store, pending, id, removed=rewrite_raw(store, person) + rewrite_findings(store, person))
        for other in others:
            pending = _noted(store, pending, id, removed=other(store, person.ids))
        log(f"forget {id}: {len(pending.removed)} raw files, findings, reviews and evaluations are written anew")
        _erase(store, lake, person, pending, id)
        log(f"forget {id}: the rows are out of the table")
        record_dataset_users(store, lake)
        leftovers = holding_rows(store, pending.affected.iterations, pending.affected.datasets) + unfinished(store)
        pending = _noted(store, pending, id, removed=leftovers)
        remove(store, leftovers)
        log(f"forget {id}: {len(leftovers)} derived files are gone")
        pending = _noted(store, pending, id, expiring=True)
        swept = SweepResult()
        if before is None or pending.rows or pending.affected.datasets:
            lake.expire(None)
            swept = lake.sweep(0)
        log(f"forget {id}: {swept.files} files swept, {swept.bytes:,} bytes")
        left = _left(store, lake, person)
        proof = _proof(before or _empty(person, pending, now), pending, serving, swept, left)
        proof = proof.model_copy(update={"outside": _outside(store, address, proof.outside)})
        if proof != before:
            checked = {"finished": now, "checked_files": left.files, "checked_bytes": left.bytes}
            proof = proof.model_copy(update=checked)
        store.write(proof_name(id), proof)
        log(f"forget {id}: the proof is written")
        _audit(store, proof, now)
        store.path(pending_name(id)).unlink(missing_ok=True)
    return proof


def _listed(
    context: StageContext, lake: Lake, person: Person, tracking_uri: str, now: datetime
) -> tuple[Pending, dict[str, set[str]]]:
    """What is affected, with what an earlier attempt found, on record before anything goes; and traces by day."""
    store, id = context.store, proof_id(person.user_hash, person.since)
    known = store.read(pending_name(id), Pending)
    affected = known.affected if known is not None else Affected()
    if known is None or not known.expiring:
        affected = affected.plus(find(store, lake, context.lake, person, tracking_uri))
    rows = lake.rows_of(person.ids, person.since)
    counted = {day: account.count(lake, person, day) for day in rows}
    days = {day: account.after(store, lake, day, files, id) for day, (files, _) in counted.items()}
    pending = known or Pending(requested=now)
    pending = pending.model_copy(
        update={"affected": affected, "days": {**pending.days, **days}, "rows": {**pending.rows, **rows}}
    )
    store.write(pending_name(id), pending)
    return pending, {day: traces for day, (_, traces) in counted.items()}


def _noted(store: Store, pending: Pending, id: str, *, removed: Iterable[str] = (), expiring: bool = False) -> Pending:
    updated = pending.model_copy(
        update={
            "removed": tuple(sorted({*pending.removed, *removed})),
            "expiring": expiring or pending.expiring,
        }
    )
    store.write(pending_name(id), updated)
    return updated


def _block(context: StageContext, affected: Affected, id: str, tracking_uri: str, now: datetime) -> str:
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
        rows = versions.registered(tracking_uri, name, affected.iterations)
        versions.tag_blocked(tracking_uri, rows, id, new_block.reason)
        champion_state = champion(store, name)
        if champion_state is not None and champion_state.model.digest in affected.digests:
            serving = f"{name} version {champion_state.version} is the champion and serves on; replace it to end that"
    return serving


def _erase(store: Store, lake: Lake, person: Person, pending: Pending, id: str) -> None:
    """One commit, and the accounts that follow from it."""
    rows = lake.rows_of(person.ids, person.since)
    if rows:
        reports = {day: pending.days.get(day) for day in rows}
        # A day without a report that fits gets a digest that no report has: the stage makes it again.
        digests = {day: report.digest if report else f"erased-{id}" for day, report in reports.items()}
        lake.erase(person.ids, person.since, digests)
    for report in pending.days.values():
        if report is not None:
            account.settle(store, lake, report)


def _left(store: Store, lake: Lake, person: Person) -> SearchResult:
    """What still holds the user. After a withdrawn consent files are not searched: earlier rows stay, with the id."""
    search_result = SearchResult(0, 0, ()) if person.since is not None else search(store, person.ids)
    again = [f"the governed table, {day}" for day in lake.rows_of(person.ids, person.since)]
    return search_result._replace(remains=(*again, *search_result.remains))


def _outside(store: Store, address: Address | None, known: tuple[str, ...]) -> tuple[str, ...]:
    """What sources keep of the user. One that cannot be opened now is named by what was read of it last."""
    if address is None:
        return known
    try:
        here = left_outside(store, address)
    except ValueError:
        label = (store.read(layout.WATERMARK, Watermark) or Watermark()).source or f"the source {address.section.kind}"
        here = f"{label}: ask its owner to delete what it has of the user"
    return tuple(sorted({*known, *([here] if here else [])}))


def _empty(person: Person, pending: Pending, now: datetime) -> ErasureProof:
    """The proof of a first erasure, before anything is in it."""
    return ErasureProof(
        id=proof_id(person.user_hash, person.since),
        mark=person.user_hash,
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
            "remains": left.remains,
        }
    )


def _audit(store: Store, proof: ErasureProof, now: datetime) -> None:
    """An entry for every state of the proof, so that a changed proof no longer has one."""
    digest = digest_json(proof)
    if any(e.subject == proof.id and e.detail.get("proof") == digest for e in audit.entries(store)):
        return
    counts = {"rows": sum(proof.rows.values()), "days": len(proof.rows), "versions": list(proof.affected.versions)}
    audit.record(store, "erasure", proof.id, {"mark": proof.mark, **counts, "proof": digest}, now)


def _summary(affected: Affected) -> str:
    counts = {name: len(getattr(affected, name)) for name in ("datasets", "iterations", "checkpoints", "versions")}
    return ", ".join(f"{count} {name}" for name, count in counts.items())
