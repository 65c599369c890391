"""The recipe's section names an engine; what it needs and does not have is named too, before anything is started."""

import json
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.storage import ModelRef
from pipeline.recipe.serving import AnyServing, EndpointServing, TransformersServing, VllmServing
from pipeline.serving.chat import EndpointEngine
from pipeline.serving.endpoint import Endpoint
from pipeline.serving.engines import Machine, ServingAddresses, open_engine, this_machine, too_large
from pipeline.serving.transformers_engine import TransformersEngine
from pipeline.serving.vllm_engine import VllmEngine

ENDPOINT = EndpointServing(champion="a", candidate="b")
BASE = ModelRef(uri="base", digest="1" * 64)
PYTHON = ServingAddresses(vllm_python=sys.executable)


@pytest.mark.parametrize(
    ("section", "addresses", "kind"),
    [
        (TransformersServing(), ServingAddresses(), TransformersEngine),
        (ENDPOINT, ServingAddresses(Endpoint("http://127.0.0.1:1/v1")), EndpointEngine),
        (VllmServing(), PYTHON, VllmEngine),
    ],
)
def test_the_section_names_the_engine(
    tmp_path: Path, section: AnyServing, addresses: ServingAddresses, kind: type
) -> None:
    with open_engine(section, addresses, print, tmp_path) as engine:
        assert isinstance(getattr(engine, "engine", engine), kind)


@pytest.mark.parametrize(
    ("section", "addresses", "words"),
    [
        (ENDPOINT, PYTHON, "SERVING_URL is empty. Set it"),
        (
            VllmServing(),
            ServingAddresses(Endpoint("http://127.0.0.1:1/v1")),
            r"VLLM_PYTHON \(''\) is no Python\. Set it",
        ),
        (VllmServing(), ServingAddresses(vllm_python="/no/python"), r"VLLM_PYTHON \('/no/python'\) is no Python"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, section: AnyServing, addresses: ServingAddresses, words: str) -> None:
    with pytest.raises(ValueError, match=words), open_engine(section, addresses, print, tmp_path):
        pass


@pytest.mark.slow
def test_an_environment_without_vllm_is_refused(tmp_path: Path) -> None:
    with (
        open_engine(VllmServing(), PYTHON, print, tmp_path) as engine,
        pytest.raises(ValueError, match=r"does not have vLLM .* Set VLLM_PYTHON"),
        engine.open("champion", BASE),
    ):
        pass


def test_no_text_form_of_the_addresses_shows_the_key() -> None:
    addresses = ServingAddresses(Endpoint("http://127.0.0.1:1/v1", "sk-secret"), "python")
    assert "secret" not in repr(addresses) + str(addresses) + f"{addresses}"


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
        (
            TransformersServing(),
            Machine(31 * GB, ()),
            "take 32.0 GB where they are evaluated, over the 31.0 GB of",
        ),
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
