"""What a training's weights are: their precision, their shards, and what is merged in the end."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.integrations.deepspeed import (
    is_deepspeed_zero3_enabled,
    set_hf_deepspeed_config,
    unset_hf_deepspeed_config,
)

from pipeline.demo import MODEL_DIR
from pipeline.training.callback import finite
from pipeline.training.methods.builder import keep_adapter_precision
from pipeline.training.weights import take_back
from tests.pipeline.training.plans import folder, make_plan

CONFIG = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")


def with_adapter(dtype: torch.dtype) -> PeftModel:
    base = AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype=dtype)
    model = get_peft_model(base, CONFIG, autocast_adapter_dtype=False)  # as TRL leaves those of a quantised base
    assert isinstance(model, PeftModel)
    return model


def weights_in(model: Path) -> int:
    return sum(each.numel() for each in load_file(model / "model.safetensors").values())


def precisions(model: Any, *, trained: bool) -> set[torch.dtype]:
    return {weight.dtype for weight in model.parameters() if weight.requires_grad == trained}


def test_adapters_of_a_quantised_base_are_trained_in_fp32() -> None:
    model = with_adapter(torch.bfloat16)
    assert precisions(model, trained=True) == {torch.bfloat16}
    keep_adapter_precision(model)
    assert precisions(model, trained=True) == {torch.float32}
    assert precisions(model, trained=False) == {torch.bfloat16}


class ThirdStage:
    def is_zero3(self) -> bool:
        return True


def test_the_base_to_merge_into_is_whole_under_zero_3(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """transformers loads models in shards from the start of DeepSpeed's third stage on."""
    store, plan = make_plan(tmp_path)
    best = folder(store, plan) / "checkpoints" / "step-2"
    with_adapter(torch.float32).save_pretrained(str(best))
    stage = ThirdStage()
    request.addfinalizer(unset_hf_deepspeed_config)
    set_hf_deepspeed_config(stage)
    assert is_deepspeed_zero3_enabled()
    trainer: Any = SimpleNamespace(processing_class=AutoTokenizer.from_pretrained(MODEL_DIR))
    merged = Path(take_back(plan, trainer, folder(store, plan), best).model.uri)
    assert weights_in(merged) == weights_in(MODEL_DIR)


@pytest.mark.parametrize(("value", "expected"), [(1.0, True), (float("nan"), False), (float("inf"), False)])
def test_a_shard_that_is_no_number_is_seen_under_zero_3(value: float, expected: bool) -> None:
    """Between two steps DeepSpeed leaves a weight empty, with this rank's shard beside it."""
    weight: Any = torch.nn.Parameter(torch.empty(0))
    weight.ds_tensor = torch.tensor([0.5, value])
    model: Any = SimpleNamespace(parameters=lambda: [weight])
    assert finite(model) is expected
