"""Forgetting a user in a copy of the data root, which then moves; and with a kill at each write."""

import shutil
from pathlib import Path

import pytest

from pipeline.core import audit, layout
from pipeline.core.storage import digest_json
from pipeline.governance.erasure.records import ErasureProof
from pipeline.registry import versions
from tests.killing import differing
from tests.pipeline.governance.erasure import forget_work
from tests.pipeline.governance.erasure.conftest import ANN, NAME, Place, World
from tests.pipeline.governance.erasure.looking import contents, erase, holding, words_of

pytestmark = pytest.mark.slow


def test_an_erasure_in_a_copy_leaves_the_original_alone(world: World, tmp_path: Path) -> None:
    shutil.copytree(world.place.root, tmp_path / "copy")
    original = contents(world.place.root)
    proof = erase(Place(tmp_path / "copy"))
    assert contents(world.place.root) == original
    assert "blocked" not in versions.mlflow_client(world.place.tracking_uri).get_model_version(NAME, "1").tags
    (tmp_path / "copy").rename(tmp_path / "moved")
    moved = Place(tmp_path / "moved")
    assert holding(moved.root, *words_of(ANN)) == set() and proof.remains == ()
    blocked = versions.mlflow_client(moved.tracking_uri).get_model_version(NAME, "1")
    assert blocked.tags["blocked"] == f"erasure {proof.id}"
    assert moved.store.read(layout.proof(proof.id), ErasureProof) == proof
    assert audit.verify(moved.store).flaw == ""
    assert [e.detail["proof"] for e in audit.entries(moved.store) if e.kind == "erasure"] == [digest_json(proof)]
    assert erase(moved).follows == proof.id and not (tmp_path / "copy").exists()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.variant), 199])
def test_an_erasure_killed_at_its_writes_ends_the_same(every: int, _made: tuple[World, Path], tmp_path: Path) -> None:
    """At every file that is opened to be written, made, renamed or removed, and around every commit of a database."""
    kills, wrong = differing(forget_work.__name__, _made[1], tmp_path, every)
    assert kills > (200 if every == 1 else 1) and wrong == []
