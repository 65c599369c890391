"""What an erasure says about itself: the affected, listed before anything is deleted, and the proof afterwards.

Owns the two records and their names in the store. Neither holds the user: only the mark, which `traces.erased` makes.
An id is drawn, and says nothing of anybody.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pydantic import Field

from pipeline import audit, layout
from pipeline.storage import Record, Store, digest_json
from pipeline.traces.erased import erased_users
from pipeline.traces.records import DayReport


class Affected(Record):
    """All that was made from rows of the user. Sorted, so that the same finding is the same record."""

    datasets: tuple[str, ...] = ()
    """Digests."""
    iterations: tuple[str, ...] = ()
    checkpoints: tuple[str, ...] = ()
    """`<iteration>/<what>`: each resumable checkpoint, the final adapter and model and the reward model with their
    digests."""
    versions: tuple[str, ...] = ()
    """`<model name> version <n>`, as MLflow or the iteration has it."""
    digests: tuple[str, ...] = ()
    """Of the affected adapters, models and reward models: what is blocked."""
    inherited: tuple[str, ...] = ()
    """Versions (else iterations) trained on top of an affected model: they did not see the data themselves."""
    undetermined: tuple[str, ...] = ()
    """Of `datasets`, those of which nothing is left that could tell: counted as affected."""
    naming: tuple[str, ...] = Field(default=(), exclude_if=lambda value: not value)
    """Iterations that did not see the user's rows, but others' that name the user: their rows went, their models are
    not blocked."""

    def plus(self, other: Affected) -> Affected:
        mine, theirs = self.model_dump(), other.model_dump()
        return Affected(**{name: tuple(sorted({*mine[name], *theirs[name]})) for name in mine})


class Pending(Record):
    """An erasure under way: what a second attempt cannot find out any more."""

    mark: str = ""
    since: datetime | None = None
    requested: datetime
    affected: Affected = Affected()
    days: dict[str, DayReport | None] = Field(default={})
    """The reports as they are after the erasure; None: the day's report and table disagreed, it is made again."""
    rows: dict[str, int] = Field(default={})
    """Rows of the user by day."""
    names: dict[str, int] = Field(default={})
    """Rows of others that named the user, by day."""
    removed: tuple[str, ...] = ()
    """Noted before each file is deleted or written anew."""
    expiring: bool = False
    """Old snapshots may be gone: what they held is only known from here."""


class PendingRows(Record):
    """What raw files and the table say of the user's rows, kept while the erasure is under way and searched for at its
    end."""

    rows: tuple[str, ...] = ()
    """Ids of traces and calls."""
    heads: tuple[str, ...] = ()
    """Beginnings of lines, a character a byte."""


class ErasureProof(Record):
    """`erasures/<id>.json`: what was removed, for whom, and what of it lives on in models."""

    id: str
    nonce: str = Field(default="", exclude_if=lambda value: not value)
    """Drawn: with it the digest that the audit log has of this record cannot be made by who guesses the mark."""
    mark: str
    since: datetime | None
    requested: datetime
    finished: datetime
    rows: dict[str, int] = Field(default={})
    """Rows of the governed table that were removed, by day."""
    names: dict[str, int] = Field(default={}, exclude_if=lambda value: not value)
    """Rows of others that named the user and stay without the name, by day."""
    affected: Affected
    champion: str = ""
    """A champion that learned from the data serves on until a person replaces it: said here. Else empty."""
    removed: tuple[str, ...] = ()
    """Derived files that were deleted, and files (`name: n lines`, `n names`) that were written anew without the
    user."""
    swept_files: int = 0
    swept_bytes: int = 0
    checked_files: int = 0
    checked_bytes: int = 0
    """Read after the erasure, decoded, in search of the user; none with `since`, for earlier rows stay."""
    identifiers: int = 0
    """How many were searched for: ids and pseudonyms of the user, ids of their traces and calls."""
    unsearched: tuple[str, ...] = ()
    """What was not searched, and why."""
    remains: tuple[str, ...] = ()
    """Files that still hold the user, or that could not be looked into: a person has to see to them. Empty is a clean
    end."""

    outside: tuple[str, ...] = Field(default=(), exclude_if=lambda value: not value)
    """Sources that are not this deployment's and may hold the user, each with what to ask of its owner, and copies of
    checkpoints in an object store. Rows that come from there are rejected."""

    @property
    def has_matches(self) -> bool:
        """Whether there was anything to forget."""
        return bool(self.rows or self.names or self.removed or self.affected != Affected())

    def statement(self) -> dict[str, Any]:
        """What it says of the person: the same after every kill. Times and the work of an attempt are no part of it."""
        return self.model_dump(mode="json", exclude=_OF_AN_ATTEMPT)


_OF_AN_ATTEMPT = {
    "id",
    "nonce",
    "requested",
    "finished",
    "swept_files",
    "swept_bytes",
    "checked_files",
    "checked_bytes",
}


def id_of(store: Store, marks: Sequence[str], since: datetime | None) -> str:
    """The id of the user's erasure from `since` on: that of an earlier one, finished or not, else a drawn one.

    `marks`: all of the user.
    """
    for each in proofs(store):
        if each.mark in marks and each.since == since:
            return each.id
    for path in sorted(store.path(layout.ERASURES, "pending").glob("*.json")):
        notes = None if path.stem.endswith(".rows") else store.read(pending_name(path.stem), Pending)
        if notes is not None and notes.mark in marks and notes.since == since:
            return path.stem
    for entry in erased_users(store).users:  # of a list that was put back
        if entry.mark in marks and entry.since == since:
            return entry.proof
    unkeyed = digest_json([marks[0], since.isoformat() if since else None])[:16]
    return unkeyed if store.path(pending_name(unkeyed)).exists() else secrets.token_hex(8)


def proof_name(id: str) -> str:
    return layout.proof(id)


def pending_name(id: str) -> str:
    return layout.pending_erasure(id)


def pending_rows_name(id: str) -> str:
    return layout.pending_erasure(f"{id}.rows")


def proofs(store: Store) -> list[ErasureProof]:
    """Every proof, by id."""
    records = [store.read(proof_name(p.stem), ErasureProof) for p in sorted(store.path(layout.ERASURES).glob("*.json"))]
    return [proof for proof in records if proof is not None]


def publish(store: Store, proof: ErasureProof, now: datetime) -> None:
    """Write the proof, and an entry for every state of it, so that a changed proof has none."""
    store.write(proof_name(proof.id), proof)
    digest = digest_json(proof)
    if audit.has_proof(store, proof.id, digest):
        return
    counts = {"rows": sum(proof.rows.values()), "days": len(proof.rows), "versions": list(proof.affected.versions)}
    audit.record(store, "erasure", proof.id, {**counts, "proof": digest}, now)
