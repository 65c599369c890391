"""What a training's weights are."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from pipeline.demo import MODEL_DIR
from pipeline.training.callback import finite
from pipeline.training.methods.builder import keep_adapter_precision

pytestmark = pytest.mark.slow  # its imports take seconds


def test_adapters_of_a_quantised_base_are_trained_in_fp32() -> None:
    base = AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype=torch.bfloat16)
    config = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(base, config, autocast_adapter_dtype=False)  # as TRL leaves those of a quantised base

    def precisions(trained: bool) -> set[torch.dtype]:
        return {weight.dtype for weight in model.parameters() if weight.requires_grad == trained}

    assert precisions(trained=True) == {torch.bfloat16}
    keep_adapter_precision(model)
    assert (precisions(trained=True), precisions(trained=False)) == ({torch.float32}, {torch.bfloat16})


@pytest.mark.parametrize("value", [1.0, math.nan, math.inf])
def test_a_weight_that_is_no_number_is_seen(value: float) -> None:
    model: Any = SimpleNamespace(parameters=lambda: [torch.nn.Parameter(torch.tensor([0.5, value]))])
    assert finite(model) is math.isfinite(value)
