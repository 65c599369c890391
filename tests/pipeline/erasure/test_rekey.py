"""Marks taken to a newer key: from none, from an older one, through kills, and past a key that is lost."""

import shutil
from pathlib import Path

import pytest
from mlflow import MlflowClient

from pipeline import audit
from pipeline.erasure.proof import ErasureProof, proofs
from pipeline.erasure.rekey import rekey
from pipeline.mark_keys import MarkKeys
from pipeline.rollout.blocks import blocks
from pipeline.storage import Store, digest_json
from pipeline.traces.erased import (
    ErasedUser,
    add,
    bind,
    erased_users,
    exclusive_lock,
    forgotten,
    shared_lock,
    user_hash,
)
from pipeline.traces.pii import pseudonym
from tests.contexts import KEYS, mark_of, quiet
from tests.pipeline.erasure.conftest import ANN, BOB, NOW, Place, World
from tests.pipeline.erasure.crashes import crashed_at_every_write
from tests.pipeline.erasure.looking import erase, holding

OLD_ID = digest_json([user_hash(ANN), None])[:16]


def unkeyed(world: World) -> ErasureProof:
    """Ann's erasure as a version without keys left it."""
    place, proof = world.place, erase(world.place)
    names = {proof.id: OLD_ID, **{mark_of(user): user_hash(user) for user in (str(pseudonym(ANN)), BOB)}}
    shutil.rmtree(place.store.path("audit"))
    place.store.path("traces", "marks.json").unlink()
    for path in [*place.root.rglob("*.json")]:
        text = path.read_text()
        for new, old in names.items():
            text = text.replace(new, old)
        path.write_text(text)
        if proof.id in path.name:
            path.rename(path.with_name(path.name.replace(proof.id, OLD_ID)))
    old = proof.model_copy(update={"id": OLD_ID, "mark": user_hash(ANN), "nonce": ""})
    place.store.write(f"erasures/{OLD_ID}.json", old)
    audit.record(place.store, "admission", "2026-01-05", {"admitted": 1}, NOW)
    reason = f"it learned from data that erasure {OLD_ID} removed"
    detail = {"mark": user_hash(ANN), "rows": 12, "days": 2, "versions": [], "proof": digest_json(old)}
    audit.record(place.store, "erasure", OLD_ID, detail, NOW)
    audit.record(place.store, "rollback", "r/3", {"reason": reason, "by": ""}, NOW)
    return old


def again(place: Place) -> None:
    with exclusive_lock(place.store):
        rekey(place.store, place.tracking_uri, NOW, quiet)


def check_rekeyed(place: Place, old: ErasureProof) -> None:
    """Nothing of the unkeyed mark is left, and everything is as it was but for that."""
    (proof,) = proofs(place.store)
    kept = {str(path) for path in place.root.rglob("mlflow.db")}  # free pages of a database that is open
    texts = {name for name in holding(place.root, user_hash(ANN), user_hash(BOB), OLD_ID) if not name.endswith(".db")}
    assert texts == set() and kept
    assert proof.statement() == {**old.statement(), "mark": mark_of(ANN)}
    assert [(user.mark, user.proof) for user in erased_users(place.store).users] == [(mark_of(ANN), proof.id)]
    assert [block.proof for block in blocks(place.store)] == [proof.id]
    assert audit.verify(place.store).flaw == ""
    entries = list(audit.entries(place.store))
    assert [entry.kind for entry in entries] == ["admission", "erasure", "rollback", "rewritten"]
    assert entries[1].detail == {"rows": 12, "days": 2, "versions": [], "proof": digest_json(proof)}
    assert proof.id in entries[2].detail["reason"]
    tags = MlflowClient(place.tracking_uri).get_model_version("demo", "1").tags
    assert tags["blocked"] == f"erasure {proof.id}"


@pytest.mark.slow
def test_a_store_without_keys_recognises_and_is_rewritten(world: World) -> None:
    old = unkeyed(world)
    place = world.place
    days = place.store.path("traces", "days", "2026-01-05.json").read_text()
    assert forgotten(place.store).entry(ANN) is not None
    again(place)
    check_rekeyed(place, old)
    assert place.reports()["2026-01-05"].digest in days, "what a day is named by stays"
    again(place)
    check_rekeyed(place, old)
    assert erase(place) == proofs(place.store)[0], "forgotten already"
    assert len(proofs(place.store)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
def test_rekeying_killed_at_any_write_forgets_nobody(after: bool, world: World) -> None:
    """One attempt after the other, each of which dies one write later than the one before."""
    old, place = unkeyed(world), world.place
    writes = ((Path, "replace"), (Path, "unlink"), (MlflowClient, "set_model_version_tag"))

    def recognised(crashes: int) -> None:
        assert forgotten(place.store).entry(ANN) is not None, f"after {crashes} kills"

    crashes = crashed_at_every_write(lambda: again(place), writes, after, recognised)
    assert crashes > 8
    check_rekeyed(place, old)


@pytest.fixture
def rotating(tmp_path: Path) -> Store:
    """One user forgotten under the first key of a file."""
    store = Store(tmp_path / "data", MarkKeys(file=tmp_path / "mark-keys", is_made=True))
    forget(store, "ann")
    return store


def forget(store: Store, user: str) -> None:
    with exclusive_lock(store):
        add(store, ErasedUser(mark=bind(store).mark(user_hash(user)), since=None, proof=f"proof of {user}"))


def test_a_rotated_key_recognises_before_and_after(rotating: Store) -> None:
    (before,) = erased_users(rotating).users
    proof = ErasureProof.model_validate(
        {"id": "p", "nonce": "n", "mark": before.mark, "since": None, "requested": NOW, "finished": NOW, "affected": {}}
    )
    rotating.write("erasures/p.json", proof)
    rotating.keys.add()
    assert forgotten(rotating).entry("ann") == before
    forget(rotating, "bob")
    assert {user.proof for user in (forgotten(rotating).entry(u) for u in ("ann", "bob")) if user} == {
        "proof of ann",
        "proof of bob",
    }
    with exclusive_lock(rotating):
        assert rekey(rotating, "", NOW, quiet) == 2
    chain = bind(rotating)
    assert [user.mark.partition("-")[0] for user in erased_users(rotating).users] == [chain.newest] * 2
    (rewritten,) = proofs(rotating)
    assert rewritten.mark == chain.mark(user_hash("ann")) and rewritten.nonce != "n"
    assert audit.has_proof(rotating, "p", digest_json(rewritten))
    assert forgotten(rotating).entry("ann") is not None and forgotten(rotating).entry("cyd") is None


def test_a_lost_key_lets_nobody_in_before_a_person_says_so(rotating: Store, tmp_path: Path) -> None:
    from jobs.rekeying import _without

    (user,) = erased_users(rotating).users
    lost = user.mark.partition("-")[0]
    (tmp_path / "mark-keys").unlink()
    with pytest.raises(ValueError, match="nobody who was forgotten can be recognised"), shared_lock(rotating):
        pass
    store = Store(rotating.root, KEYS)
    for refused in (lambda: forgotten(store), lambda: bind(store)):
        with pytest.raises(ValueError, match=f"marks of the key {lost}.*1 forgotten users would not be recognised"):
            refused()
    with pytest.raises(ValueError, match="was not said to be lost"):
        _without(store, "", lost)
    with pytest.raises(ValueError, match="No mark of"):
        _without(store, "12345678", "")
    _without(store, lost, "")
    with pytest.raises(ValueError, match="no row is read"), shared_lock(store):
        pass
    forget(store, "ann")
    with pytest.raises(ValueError, match="no row is read"):
        forgotten(store)
    _without(store, "", lost)
    assert forgotten(store).entry("ann") is not None
    assert [entry.detail["action"] for entry in audit.entries(store)] == ["lost", "accepted"]
