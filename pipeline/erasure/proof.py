"""What an erasure says about itself: the affected, listed before anything is deleted, and the proof afterwards.

Owns the two records and their names in the store. Neither holds the user: only the mark, which `traces.erased` makes.
"""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from pipeline import layout
from pipeline.storage import Record, Store, digest_json
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


class Pending(Record):
    """An erasure under way: what a second attempt cannot find out any more."""

    requested: datetime
    affected: Affected = Affected()
    days: dict[str, DayReport | None] = Field(default={})
    """The reports as they are after the erasure; None: the day's report and table disagreed, it is made again."""
    rows: dict[str, int] = Field(default={})
    """Rows of the user by day."""
    removed: tuple[str, ...] = ()
    expiring: bool = False
    """Old snapshots may be gone: what they held is only known from here."""


class ErasureProof(Record):
    """`erasures/<id>.json`: what was removed, for whom, and what of it lives on in models."""

    id: str
    mark: str
    since: datetime | None
    requested: datetime
    finished: datetime
    rows: dict[str, int] = Field(default={})
    """Rows of the governed table that were removed, by day."""
    affected: Affected
    champion: str = ""
    """A champion that learned from the data serves on until a person replaces it: said here. Else empty."""
    removed: tuple[str, ...] = ()
    """Derived files that were deleted, and raw files (`name: n lines`) that were written anew without the user."""
    swept_files: int = 0
    swept_bytes: int = 0
    checked_files: int = 0
    checked_bytes: int = 0
    """Read after the erasure, decoded, in search of the user; none with `since`, for earlier rows stay."""
    remains: tuple[str, ...] = ()
    """Files that still hold the user: none of ours, so a person has to see to them. Empty is a clean end."""

    outside: tuple[str, ...] = Field(default=(), exclude_if=lambda value: not value)
    """Sources that are not this deployment's and may hold the user, each with what to ask of its owner. Rows that come
    from there are rejected."""

    @property
    def has_matches(self) -> bool:
        """Whether there was anything to forget."""
        # Staged rows and half-written files go whoever's they are.
        removed = [name for name in self.removed if not ("/." in name or name.startswith(f"{layout.STAGING}/"))]
        return bool(self.rows or removed or self.affected != Affected())


def proof_id(mark: str, since: datetime | None) -> str:
    return digest_json([mark, since.isoformat() if since else None])[:16]


def proof_name(id: str) -> str:
    return layout.proof(id)


def pending_name(id: str) -> str:
    return layout.pending_erasure(id)


def proofs(store: Store) -> list[ErasureProof]:
    """Every proof, by id."""
    records = [store.read(proof_name(p.stem), ErasureProof) for p in sorted(store.path(layout.ERASURES).glob("*.json"))]
    return [proof for proof in records if proof is not None]
