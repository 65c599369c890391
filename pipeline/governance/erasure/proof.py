"""Records of an erasure: what is affected, listed before anything is deleted, and the proof afterwards. They name the
user by the mark of `traces.erased` alone."""

from __future__ import annotations

import secrets
from datetime import datetime
from typing import Any

from pydantic import Field

from pipeline.core import audit, layout
from pipeline.core.storage import Record, Store, digest_json
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

    def plus(self, other: Affected) -> Affected:
        mine, theirs = self.model_dump(), other.model_dump()
        return Affected(**{name: tuple(sorted({*mine[name], *theirs[name]})) for name in mine})


Counts = dict[str, dict[str, int]]
"""Rows by place and by file or day."""
TABLE = "governed table"


def merged(one: Counts, other: Counts) -> Counts:
    """Of two looks the larger number: after a kill a part is gone already."""
    return {
        place: {name: max(one.get(place, {}).get(name, 0), other.get(place, {}).get(name, 0)) for name in sorted(names)}
        for place in {**one, **other}
        if (names := {*one.get(place, {}), *other.get(place, {})})
    }


class _OfUser(Record):
    mark: str
    since: datetime | None
    requested: datetime
    places: Counts = Field(default={})
    """Rows that are removed."""
    affected: Affected = Affected()


class Pending(_OfUser):
    """An erasure under way: what a second attempt cannot find out any more."""

    days: dict[str, DayReport | None] = Field(default={})
    """The reports as they are after the erasure; None: the day's report and table disagreed, it is made again."""
    expiring: bool = False
    """Old snapshots may be gone: what they held is only known from here."""


class ErasureProof(_OfUser):
    """`erasures/<id>.json`: what was removed, for whom, and what of it lives on in models. Never changed: what turns up
    later is in a proof of its own."""

    id: str
    nonce: str = Field(default_factory=lambda: secrets.token_hex(16))
    """Drawn: without it, the digest in the audit log would confirm a guessed mark."""
    finished: datetime
    follows: str = ""
    """Id of the proof before it of the same user."""
    champion: str = ""
    """A champion that learned from the data serves on until a person replaces it: said here. Else empty."""
    swept_files: int = 0
    swept_bytes: int = 0
    remains: tuple[str, ...] = ()
    """What still holds the user, or could not be looked into: a person has to see to it. Empty is a clean end."""
    outside: tuple[str, ...] = ()
    """Sources that are not this deployment's and may hold the user, each with what to ask of its owner, and copies of
    checkpoints in an object store. Rows that come from there are rejected."""

    @property
    def rows(self) -> dict[str, int]:
        """Rows of the governed table that were removed, by day."""
        return self.places.get(TABLE, {})

    @property
    def has_matches(self) -> bool:
        """Whether there was anything to forget."""
        return bool(self.places or self.affected != Affected())

    def statement(self) -> dict[str, Any]:
        """What it says of the person: the same after every kill. Times and the work of an attempt are no part of it."""
        return self.model_dump(mode="json", exclude=_OF_AN_ATTEMPT)


_OF_AN_ATTEMPT = {"id", "nonce", "requested", "finished", "swept_files", "swept_bytes"}


def id_of(store: Store, mark: str, since: datetime | None) -> str:
    """The id of the user's erasure from `since` on: of one under way, or that a list which was put back names, else a
    drawn one."""
    for path in sorted(store.path(layout.ERASURES, "pending").glob("*.json")):
        notes = store.read(layout.pending_erasure(path.stem), Pending)
        if notes is not None and notes.mark == mark and notes.since == since:
            return path.stem
    for entry in erased_users(store).users:  # of a list that was put back
        if entry.mark == mark and entry.since == since and not store.path(layout.proof(entry.proof)).exists():
            return entry.proof
    return secrets.token_hex(8)


def proofs(store: Store) -> list[ErasureProof]:
    """Every proof, by id."""
    paths = sorted(store.path(layout.ERASURES).glob("*.json"))
    records = [store.read(layout.proof(path.stem), ErasureProof) for path in paths]
    return [proof for proof in records if proof is not None]


def newest(store: Store, mark: str) -> ErasureProof | None:
    """The user's last proof."""
    return max((each for each in proofs(store) if each.mark == mark), key=lambda each: each.finished, default=None)


def publish(store: Store, proof: ErasureProof, now: datetime) -> ErasureProof:
    """Write the proof and its entry in the audit log, once; the published proof."""
    if not store.create(layout.proof(proof.id), proof):
        proof = store.read(layout.proof(proof.id), ErasureProof) or proof
    counts = {"rows": sum(proof.rows.values()), "days": len(proof.rows), "versions": list(proof.affected.versions)}
    audit.record(store, "erasure", proof.id, {**counts, "proof": digest_json(proof)}, now, once=True)
    return proof
