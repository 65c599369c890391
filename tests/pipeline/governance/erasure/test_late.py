"""A model that turns up after its data was forgotten: tagged, in the proof, and asked for by every stage."""

import pytest

from pipeline.core import audit, layout
from pipeline.core.storage import digest_json
from pipeline.governance.erasure import blocked_iteration
from pipeline.governance.erasure.records import ErasureProof, proofs
from pipeline.registry import versions
from pipeline.rollout.blocks import blocks
from tests.pipeline.governance.erasure.conftest import NAME, NOW, World
from tests.pipeline.governance.erasure.looking import erase

pytestmark = pytest.mark.slow


def test_a_version_that_is_born_late_is_tagged_and_in_the_proof(world: World) -> None:
    place, first = world.place, world.first
    result, version = (place.store.path(first.path(name)) for name in ("training/result.json", "model_version.json"))
    kept = [path.read_bytes() for path in (result, version)]
    for path in (result, version):
        path.unlink()  # the training is still under way
    client = versions.mlflow_client(place.tracking_uri)
    client.set_model_version_tag(NAME, "1", "iteration", "not yet")
    proof = erase(place)
    assert proof.affected.versions == ("demo version 3",)
    assert place.store.path(first.path("training/blocked.json")).exists(), "its trainer is told"
    for path, content in zip((result, version), kept, strict=True):
        path.write_bytes(content)
    client.set_model_version_tag(NAME, "1", "iteration", first.id)
    assert place.model(first).digest not in proof.affected.digests
    reason = blocked_iteration(place.store, place.tracking_uri, first, NOW)
    assert reason.startswith(f"iteration {first.id} is blocked: it learned from data that erasure {proof.id} removed")
    assert place.store.read(layout.proof(proof.id), ErasureProof) == proof, "a finished proof is never changed"
    (late,) = (each for each in proofs(place.store) if each.follows == proof.id)
    assert late.affected.versions == ("demo version 1",) and late.places == {}
    assert place.model(first).digest in late.affected.digests
    assert place.model(first).digest in blocks(place.store)[0].digests
    assert client.get_model_version(NAME, "1").tags["blocked"] == f"erasure {proof.id}"
    entries = [e for e in audit.entries(place.store) if e.kind == "erasure"]
    assert entries[-1].detail["proof"] == digest_json(late)
    assert blocked_iteration(place.store, place.tracking_uri, first, NOW) == reason
    assert len([e for e in audit.entries(place.store) if e.kind == "erasure"]) == len(entries), "twice is once"


def test_an_iteration_of_others_is_not_blocked(world: World) -> None:
    erase(world.place)
    assert blocked_iteration(world.place.store, world.place.tracking_uri, world.second, NOW) == ""
