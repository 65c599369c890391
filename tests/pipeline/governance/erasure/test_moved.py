"""Forgetting a user in a copy of the data root: the copy's rows go, the original's stay, and the proof holds."""

import shutil
from pathlib import Path

import pytest

from pipeline.core import audit
from pipeline.core.storage import digest_json
from pipeline.governance.erasure.proof import ErasureProof, proof_name
from pipeline.registry import versions
from pipeline.traces.lake import open_lake
from tests.pipeline.governance.erasure.conftest import ANN, BOB, NAME, Place, World
from tests.pipeline.governance.erasure.looking import erase, holding, words_of


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_an_erasure_in_a_copy_leaves_the_original_alone(world: World, tmp_path: Path) -> None:
    copy = Place(tmp_path / "copy")
    shutil.copytree(world.place.root, copy.root)
    original = contents(world.place.root)
    proof = erase(copy)
    assert holding(copy.root, *words_of(ANN)) == set()
    assert proof.remains == ()
    assert proof.swept_files > 0
    assert contents(world.place.root) == original
    blocked = versions.mlflow_client(copy.tracking_uri).get_model_version(NAME, "1")
    assert blocked.tags["blocked"] == f"erasure {proof.id}"
    assert "blocked" not in versions.mlflow_client(world.place.tracking_uri).get_model_version(NAME, "1").tags


@pytest.mark.slow
def test_a_proof_still_agrees_with_the_log_after_a_move(world: World, tmp_path: Path) -> None:
    shutil.copytree(world.place.root, tmp_path / "first")
    proof = erase(Place(tmp_path / "first"))
    (tmp_path / "first").rename(tmp_path / "second")
    moved = Place(tmp_path / "second")
    assert moved.store.read(proof_name(proof.id), ErasureProof) == proof
    assert audit.verify(moved.store).flaw == ""
    assert [e.detail["proof"] for e in audit.entries(moved.store) if e.kind == "erasure"] == [digest_json(proof)]
    assert erase(moved).follows == proof.id
    with open_lake(moved.lake) as lake:
        assert BOB in lake.read(["2026-01-05"], lake.snapshot, ["user_id"])["user_id"].to_pylist()
    assert not (tmp_path / "first").exists()
