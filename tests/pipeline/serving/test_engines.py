"""The recipe's section names an engine; what it needs and does not have is named too, before anything is started."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pipeline.core.storage import ModelRef
from pipeline.recipe.serving import AnyServing, EndpointServing, TransformersServing, VllmServing
from pipeline.serving.endpoint_engine import EndpointEngine
from pipeline.serving.engines import ServingAddresses, open_engine
from pipeline.serving.transformers_engine import TransformersEngine
from pipeline.serving.vllm_engine import ServedAdapter, VllmEngine, lora_arguments

ENDPOINT = EndpointServing(champion="a", candidate="b")
BASE, ADAPTER = ModelRef(uri="base", digest="1" * 64), ModelRef(uri="adapter", digest="2" * 64)
PYTHON = ServingAddresses(vllm_python=sys.executable)


@pytest.mark.parametrize(
    ("section", "addresses", "kind"),
    [
        (TransformersServing(), ServingAddresses(), TransformersEngine),
        (ENDPOINT, ServingAddresses(url="http://127.0.0.1:1/v1"), EndpointEngine),
        (VllmServing(), PYTHON, VllmEngine),
    ],
)
def test_the_section_names_the_engine(
    tmp_path: Path, section: AnyServing, addresses: ServingAddresses, kind: type
) -> None:
    with open_engine(section, addresses, print, tmp_path) as engine:
        assert isinstance(engine, kind)


@pytest.mark.parametrize(
    ("section", "addresses", "words"),
    [
        (ENDPOINT, PYTHON, "SERVING_URL is empty. Set it"),
        (VllmServing(), ServingAddresses(url="http://127.0.0.1:1/v1"), "VLLM_PYTHON is empty. Set it"),
        (VllmServing(), ServingAddresses(vllm_python="/no/python"), "No Python at /no/python. Set VLLM_PYTHON"),
        (VllmServing(adapters=True), PYTHON, "adapters is true, and the candidate is no adapter .* Set it to false"),
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


def test_an_adapter_of_another_base_is_refused(tmp_path: Path) -> None:
    other = ModelRef(uri="other", digest="3" * 64)
    served = ServedAdapter(ADAPTER, BASE)
    with (
        open_engine(VllmServing(adapters=True), PYTHON, print, tmp_path, served) as engine,
        pytest.raises(ValueError, match=r"The champion .3333.* is neither .* Set evaluation.serving.adapters to false"),
        engine.open("champion", other),
    ):
        pass


def test_an_adapter_beyond_the_ranks_of_vllm_is_refused(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": 8, "rank_pattern": {"q_proj": 513}})
    )
    with pytest.raises(ValueError, match="has rank 513; vLLM serves up to 512"):
        lora_arguments(ADAPTER.model_copy(update={"uri": str(tmp_path)}))
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 9}))
    assert "16" in lora_arguments(ADAPTER.model_copy(update={"uri": str(tmp_path)}))


def test_no_text_form_of_the_addresses_shows_the_key() -> None:
    addresses = ServingAddresses("http://127.0.0.1:1/v1", "sk-secret", "python")
    assert "secret" not in repr(addresses) + str(addresses) + f"{addresses}"
