import math

import pytest

from pipeline.training.checkpoints.manifest import CheckpointManifest, File, Origin, sealed, unseal

ORIGIN = Origin("p", 2)


def manifest(score: float | None = 0.7109375) -> CheckpointManifest:
    files = {"a.safetensors": File(size=10, sha256="0f" * 32), "b/c.pt": File(size=0, sha256="1e" * 32)}
    return CheckpointManifest(plan_digest="p", step=120, world_size=2, score=score, attempt=1, files=files)


@pytest.mark.parametrize("score", [None, 0.0, 0.1 + 0.2, -math.inf, math.inf])
def test_what_is_sealed_comes_back(score: float | None) -> None:
    assert unseal(sealed(manifest(score)), ORIGIN, 120) == manifest(score)


def test_a_score_that_is_no_number_comes_back() -> None:
    assert math.isnan(unseal(sealed(manifest(math.nan)), ORIGIN, 120).score or 0.0)


def test_every_flipped_bit_and_every_truncation_is_noticed() -> None:
    whole = sealed(manifest())
    unnoticed = []
    for bit in range(8 * len(whole)):
        harmed = bytearray(whole)
        harmed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError):
            unnoticed.append((bit, unseal(bytes(harmed), ORIGIN, 120)))
    for size in range(len(whole.rstrip())):
        with pytest.raises(ValueError):
            unnoticed.append((size, unseal(whole[:size], ORIGIN, 120)))
    assert unnoticed == []
