"""Who is to be forgotten, what was made from the rows, and the proof of an erasure, which names the user by the mark of
`traces.erased` alone. The owner of a row is who matches exactly: in NFC, and with its case."""

import secrets
import unicodedata
from datetime import datetime
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from pipeline.core import audit, layout
from pipeline.core.mark_keys import MarkKey
from pipeline.core.storage import Record, Store, digest_json
from pipeline.rewards.feedback import principal
from pipeline.traces.erased import erased_users, user_hash
from pipeline.traces.pii import pseudonym


class Person(NamedTuple):
    """`ids`: as the governed table and raw records may write the user."""

    ids: frozenset[str]
    user_hash: str
    mark: str = ""
    """As a store's key makes it."""

    @classmethod
    def named(cls, user_id: str) -> "Person":
        """By the source's id or the table's pseudonym of it. Raises ValueError for an id that is empty or no
        Unicode."""
        if not user_id.strip():
            raise ValueError("The user id is empty. Give the id under which the source has the user's traces.")
        try:
            user_id.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"The user id {user_id!r} is not Unicode. Give it in UTF-8.") from error
        same = {user_id, *(unicodedata.normalize(form, user_id) for form in ("NFC", "NFD"))}
        return cls(frozenset({*same, *(str(pseudonym(each)) for each in same)}), user_hash(user_id))

    def marked(self, key: MarkKey) -> "Person":
        """The same, with the mark of a store that has this key."""
        return self._replace(mark=key.mark(self.user_hash))

    @property
    def principals(self) -> frozenset[str]:
        """As labels, reviews, samples and suites write the user."""
        return frozenset(principal(each, None, "") for each in self.ids)

    def owns(self, user_id: str | None) -> bool:
        """Whether a record of this owner is theirs."""
        return bool(user_id) and (unicodedata.normalize("NFC", user_id) in self.ids or pseudonym(user_id) in self.ids)

    def rows(self) -> pc.Expression:
        """Whether a row of the governed table is theirs."""
        return pc.field("user_id").isin(pa.array(sorted(self.ids), pa.string()))


class Affected(Record):
    """All that was made from rows of the user. Sorted, so that the same finding is the same record."""

    datasets: tuple[str, ...] = ()
    """Digests; one of which nothing is left that could tell counts as affected."""
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

    def plus(self, other: "Affected") -> "Affected":
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


class ErasureProof(Record):
    """`erasures/<id>.json`: what was removed, for whom, and what of it lives on in models. Never changed: what turns up
    later is in a proof of its own. While the erasure is under way it is in `erasures/pending/`, with what a second
    attempt cannot find out any more."""

    id: str
    mark: str
    requested: datetime
    finished: datetime
    nonce: str = Field(default_factory=lambda: secrets.token_hex(16))
    """Drawn: without it, the digest in the audit log would confirm a guessed mark."""
    follows: str = ""
    """Id of the proof before it of the same user."""
    places: Counts = Field(default={})
    """Rows that are removed."""
    affected: Affected = Affected()
    champion: str = ""
    """A champion that learned from the data serves on until a person replaces it: said here. Else empty."""
    remains: tuple[str, ...] = ()
    """What still holds the user, or could not be looked into: a person has to see to it. Empty is a clean end."""
    outside: tuple[str, ...] = ()
    """Sources that are not this deployment's and may hold the user, each with what to ask of its owner, and copies of
    checkpoints in an object store. Rows that come from there are rejected."""

    @property
    def rows(self) -> dict[str, int]:
        """Rows of the governed table that were removed, by day."""
        return self.places.get(TABLE, {})


def id_of(store: Store, mark: str) -> str:
    """The id of the user's erasure: of one under way, or that a list which was put back names, else a drawn one."""
    paths = sorted(store.path(layout.ERASURES, "pending").glob("*.json"))
    under_way = [store.read(layout.pending_erasure(path.stem), ErasureProof) for path in paths]
    for each in under_way:
        if each is not None and each.mark == mark:
            return each.id
    for entry in erased_users(store).users:  # of a list that was put back
        if entry.mark == mark and not store.path(layout.proof(entry.proof)).exists():
            return entry.proof
    return secrets.token_hex(8)


def proofs(store: Store) -> list[ErasureProof]:
    """Every proof, by id."""
    paths = sorted(store.path(layout.ERASURES).glob("*.json"))
    records = [store.read(layout.proof(path.stem), ErasureProof) for path in paths]
    return [proof for proof in records if proof is not None]


def publish(store: Store, proof: ErasureProof, now: datetime) -> ErasureProof:
    """Write the proof and its entry in the audit log, once; the published proof."""
    if not store.create(layout.proof(proof.id), proof):
        proof = store.read(layout.proof(proof.id), ErasureProof) or proof
    counts = {"rows": sum(proof.rows.values()), "days": len(proof.rows), "versions": list(proof.affected.versions)}
    audit.record(store, "erasure", proof.id, {**counts, "proof": digest_json(proof)}, now, once=True)
    store.path(layout.pending_erasure(proof.id)).unlink(missing_ok=True)
    return proof
