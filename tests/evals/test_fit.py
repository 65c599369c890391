"""Whether a model's weights fit where they are evaluated."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from evals.fit import this_machine, too_large
from pipeline.recipe.serving import EndpointServing, TransformersServing, VllmServing
from pipeline.serving.engines import Machine

GB = 1_000_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model of 8 billion parameters in BF16, as its header says: a sparse file, no bytes of weights."""
    tensors: dict[str, Any] = {"w": {"dtype": "BF16", "shape": [80_000, 100_000], "data_offsets": [0, 16 * GB]}}
    text = json.dumps(tensors).encode()
    with (tmp_path / "model.safetensors").open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        stream.truncate(8 + len(text) + 16 * GB)
    return tmp_path


@pytest.mark.parametrize(
    ("serving", "machine", "words"),
    [
        (TransformersServing(), Machine(31 * GB, ()), "take 32.0 GB where they are evaluated, over the 31.0 GB of"),
        (TransformersServing(), Machine(33 * GB, ()), ""),
        (TransformersServing(), Machine(8 * GB, (15 * GB,)), "take 16.0 GB where they are evaluated, over the 15"),
        (TransformersServing(), Machine(8 * GB, (24 * GB,)), ""),
        (VllmServing(), Machine(8 * GB, (17 * GB,)), "over the 15.3 GB that each of 1 devices has"),
        (VllmServing(tensor_parallel=2), Machine(8 * GB, (10 * GB, 10 * GB)), ""),
        (VllmServing(tensor_parallel=2), Machine(8 * GB, (80 * GB,)), "tensor_parallel is 2, and there are 1 devices"),
        (VllmServing(), Machine(33 * GB, ()), ""),
        (VllmServing(), Machine(31 * GB, ()), "take 32.0 GB where they are evaluated, over the 31.0 GB of"),
        (EndpointServing(champion="a", candidate="b"), Machine(0, ()), ""),
    ],
)
def test_what_surely_does_not_fit_is_named(folder: Path, serving: Any, machine: Machine, words: str) -> None:
    assert bool(too_large(serving, folder, machine)) == bool(words)
    assert words in too_large(serving, folder, machine)


def test_a_containers_limit_counts(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    whole = this_machine(limit).memory
    limit.write_text("max\n")
    assert this_machine(limit).memory == whole > GB
    limit.write_text(f"{GB}\n")
    assert this_machine(limit).memory == GB
