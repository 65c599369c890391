"""Marks taken to the newest key, and what a version without keys left: marks and ids that a list of users gives away.

Owns the order of it, inside the exclusive lock: at every point each forgotten user is still recognised, by the mark of
one key or another, and a kill is healed by the same call. A user's id is not needed for it. Ids of proofs that were
made of an unkeyed mark are drawn anew, in the audit log too, once. Digests of days, datasets and iterations stay: they
name what learned from what, and a day gets its new one when it is next made.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path

from pipeline import audit, layout
from pipeline.erasure.affected import iterations
from pipeline.erasure.proof import ErasureProof, proof_name, proofs, publish
from pipeline.mark_keys import KeyChain, key_of
from pipeline.registry import versions
from pipeline.rollout.blocks import blocks
from pipeline.storage import Record, Store, digest_json, write_atomically
from pipeline.traces.dataset_users import DatasetUsers
from pipeline.traces.erased import ErasedUsers, MarkBinding, bind, erased_users, reach

Log = Callable[[str], None]
_NAMING = (
    f"{layout.DAYS}/**/*.json",
    f"{layout.BLOCKS}/*.json",
    f"{layout.ROLLOUT}/*/events/*.json",
    f"{layout.ITERATIONS}/*/{layout.OUTCOME}",
    f"{layout.ITERATIONS}/*/{layout.GOVERNED}",
    f"{layout.ITERATIONS}/*/{layout.TRAINING}/{layout.BLOCKED_FILE}",
)
"""Records beside the proofs that name one by its id."""


class Renaming(Record):
    """`erasures/pending/renaming`, while ids are drawn anew: the old ones with the new ones."""

    ids: dict[str, str]


def pending(store: Store) -> bool:
    """Whether an erasure is under way, or was killed: its notes name it by the id that it has."""
    return any(store.path(layout.ERASURES, "pending").glob("*.json"))


def rekey(store: Store, registry_uri: str, now: datetime, log: Log) -> int:
    """Take every mark to the newest key, inside `exclusive_lock`; how many forgotten users there are. Nothing is done
    while an erasure is under way, and where all marks are of that key already.

    Raises ValueError where a key is missing or a record cannot be read, OSError or MLflow's error when the registry
    fails: the same call goes on from there.
    """
    chain = bind(store)
    binding = store.read(layout.MARKS, MarkBinding)
    assert binding is not None, "it was bound a moment ago"
    users = erased_users(store).users
    if binding.is_whole or pending(store):
        return len(users)
    ids = _renamed(store)
    raised = [u.model_copy(update={"mark": chain.raised(u.mark), "proof": ids.get(u.proof, u.proof)}) for u in users]
    if tuple(raised) != users:
        by_mark = {each.mark: each for each in sorted(raised, key=reach)}  # of two entries the one that forgets more
        store.write(layout.ERASED, ErasedUsers(users=tuple(by_mark[mark] for mark in sorted(by_mark))))
    for path in sorted(store.path(layout.DATASET_USERS).glob("*.json")):
        _raise_members(store, f"{layout.DATASET_USERS}/{path.name}", chain)
    old = _written_anew(store, chain, ids)
    if ids:
        _rewrite_log(store, ids, now)
        for pattern in _NAMING:
            for path in sorted(store.root.glob(pattern)):
                _rename_in(path, ids)
        _rename_blocks(store, ids, registry_uri)
        for proof in old:
            store.path(proof_name(proof)).unlink(missing_ok=True)
    for proof in proofs(store):
        publish(store, proof, now)
    store.write(layout.MARKS, binding.model_copy(update={"is_whole": True}))
    store.path(layout.RENAMING).unlink(missing_ok=True)
    log(f"marks of {len(raised)} forgotten users are of the key {chain.newest}")
    return len(raised)


def _renamed(store: Store) -> Mapping[str, str]:
    """New ids for the proofs whose id was made of an unkeyed mark."""
    known = store.read(layout.RENAMING, Renaming)
    if known is not None:
        return known.ids
    ids = {each.id: secrets.token_hex(8) for each in proofs(store) if not key_of(each.mark)}
    if ids:
        store.write(layout.RENAMING, Renaming(ids=ids))
    return ids


def _raise_members(store: Store, name: str, chain: KeyChain) -> None:
    users = store.read(name, DatasetUsers)
    if users is not None:
        raised = DatasetUsers(newest={chain.raised(mark): at for mark, at in users.newest.items()})
        if raised != users:
            store.write(name, raised)


def _written_anew(store: Store, chain: KeyChain, ids: Mapping[str, str]) -> list[str]:
    """Write each proof with the newest mark, under its new id where it has one; the old ids, whose files are there."""
    old: list[str] = []
    for proof in proofs(store):
        name = ids.get(proof.id, proof.id)
        if name != proof.id:
            old.append(proof.id)
            if store.read(proof_name(name), ErasureProof) is not None:
                continue  # by the attempt before
        mark = chain.raised(proof.mark)
        if (name, mark) != (proof.id, proof.mark):
            # Another nonce: what the log has of the old mark then says nothing, not even to who has the old key.
            update = {"id": name, "mark": mark, "nonce": secrets.token_hex(16)}
            store.write(proof_name(name), proof.model_copy(update=update))
    return old


def _rewrite_log(store: Store, ids: Mapping[str, str], now: datetime) -> None:
    """Once: the entries without marks, with the new ids, and the last entry of each erasure with its proof of now."""
    digests = {proof.id: digest_json(proof) for proof in proofs(store)}
    newest = {e.subject: e.n for e in audit.entries(store) if e.kind == "erasure"}

    def change(entry: audit.Entry) -> audit.Entry:
        if entry.kind == "erasure" and entry.subject in ids:
            proof = digests.get(ids[entry.subject], "") if newest[entry.subject] == entry.n else ""
            detail = {key: value for key, value in entry.detail.items() if key != "mark"}
            entry = entry.model_copy(update={"detail": {**detail, "proof": proof}})
        return audit.Entry.model_validate_json(_with_names(entry.model_dump_json(), ids))

    audit.rewrite(store, change, "marks without a key were taken out", now)


def _rename_in(path: Path, ids: Mapping[str, str]) -> None:
    text = path.read_text()
    if (renamed := _with_names(text, ids)) != text:
        write_atomically(path, renamed)


def _with_names(text: str, ids: Mapping[str, str]) -> str:
    for old, new in ids.items():
        text = text.replace(old, new)
    return text


def _rename_blocks(store: Store, ids: Mapping[str, str], registry_uri: str) -> None:
    """The blocks' files, and what MLflow shows of them."""
    for block in blocks(store):
        if block.proof not in ids.values():
            continue
        store.write(layout.block(block.proof), block)
        for name in sorted({each.model_name for each in iterations(store) if each.id in block.iterations}):
            rows = versions.registered(registry_uri, name, list(block.iterations))
            versions.tag_blocked(registry_uri, rows, block.proof, block.reason)
    for old in ids:
        store.path(layout.block(old)).unlink(missing_ok=True)
