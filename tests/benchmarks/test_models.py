"""The matrix of base models: that it sees a wrong export, and that the page has every model."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.base_models import FAMILIES
from benchmarks.model_checks import file_faults, tensor_faults, token_faults
from benchmarks.models import HABITS, MARKS, PAGE

pytestmark = pytest.mark.slow


def test_a_wrong_export_is_seen(family: Callable[[str], Path], tmp_path: Path) -> None:
    base, export, adapter = family("gpt2"), tmp_path / "export", tmp_path / "adapter"
    shutil.copytree(base, export)
    adapter.mkdir()
    save_file({"base_model.model.transformer.h.0.attn.c_attn.lora_A.weight": torch.zeros(1)}, adapter / "a.safetensors")

    def found() -> list[str]:
        return [*file_faults(base, export), *tensor_faults(base, adapter, export), *token_faults(base, export)]

    assert found() == ["no tensor changed"]
    weights = load_file(export / "model.safetensors")
    name = next(each for each in weights if each.endswith("h.0.attn.c_attn.weight"))
    weights[name] += 0.1
    save_file(weights, export / "model.safetensors")
    assert found() == []
    lost, changed = "transformer.h.1.ln_1.bias", "transformer.h.1.ln_1.weight"
    del weights[lost]
    save_file(weights | {changed: weights[changed].half() + 1}, export / "model.safetensors")
    (export / "generation_config.json").unlink()
    settings = json.loads((export / "tokenizer_config.json").read_text())
    (export / "tokenizer_config.json").write_text(json.dumps(settings | {"tokenizer_class": "LlamaTokenizer"}))
    assert set(found()) >= {
        "generation_config.json is lost",
        "tokenizer_config.json differs",
        f"1 tensors lost, such as {lost}",
        f"1 tensors of another dtype, such as {changed}: torch.float32 and torch.float16",
        f"1 tensors changed that were not trained, such as {changed}",
        "other tokens for 'Add 3 and 4.'",
    }


def test_every_model_has_a_row_and_the_page_a_place_for_it() -> None:
    assert HABITS.keys() == FAMILIES.keys()
    assert [PAGE.read_text().count(mark) for mark in MARKS] == [1, 1]
