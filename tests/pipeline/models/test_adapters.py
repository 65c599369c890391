"""Adapters: what the recipe asks of PEFT, what is refused, and what they reach of models of other families."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from peft import get_peft_model
from peft.tuners.lora import LoraLayer
from transformers import AutoModelForCausalLM, AutoTokenizer

from pipeline.demo import MODEL_DIR
from pipeline.models.adapters import adapter_config, keep_adapter_precision
from pipeline.recipe import Lora
from pipeline.training.rates import shape_of

pytestmark = pytest.mark.slow  # its imports take seconds


def base() -> tuple[Any, Any]:
    return AutoModelForCausalLM.from_pretrained(MODEL_DIR), AutoTokenizer.from_pretrained(MODEL_DIR)


def adapted(lora: Lora, model: Any, tokenizer: Any) -> Any:
    return get_peft_model(model, adapter_config(lora, model, tokenizer))


def reached(model: Any) -> str:
    """The modules with an adapter: how many of each name. Experts are one weight of many."""
    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, LoraLayer)]
    parts = [(name.rpartition(".")[2], getattr(module, "parameter_name", "weight")) for name, module in layers]
    names = Counter(name if weight == "weight" else weight for name, weight in parts)
    return f"on {names.total()} modules: {', '.join(f'{name} {names[name]}' for name in sorted(names))}"


def test_the_options_of_the_recipe_are_pefts() -> None:
    model, tokenizer = base()
    lora = Lora(r=4, rslora=True, dora=True, modules_to_save=("norm",), trainable_tokens=("<|im_end|>",))
    trained = adapted(lora, model.bfloat16(), tokenizer)
    keep_adapter_precision(trained)
    config = trained.peft_config["default"]
    assert (config.r, config.use_rslora, config.use_dora) == (4, True, True)
    weights = {name: weight for name, weight in trained.named_parameters() if weight.requires_grad}
    assert {str(weight.dtype) for weight in weights.values()} == {"torch.float32"}
    (row,) = (weight for name, weight in weights.items() if "trainable_tokens_delta" in name)
    assert len(row) == 1 and any("lora_magnitude" in name for name in weights)
    assert any(name.endswith("norm.modules_to_save.default.weight") for name in weights)


@pytest.mark.parametrize("token", ["<nowhere>", "<without a row>"])
def test_a_token_without_a_row_is_refused(token: str) -> None:
    model, tokenizer = base()
    tokenizer.add_tokens("<without a row>")
    with pytest.raises(ValueError, match=rf"trainable_tokens: '{token}' is no token .* Add it to both"):
        adapter_config(Lora(trainable_tokens=(token,)), model, tokenizer)


def test_a_module_that_layers_share_has_no_adapter() -> None:
    model, tokenizer = base()
    before = reached(adapted(Lora(), *base()))
    first, second, *_ = layers = model.model.layers
    second.mlp.up_proj.weight = first.mlp.up_proj.weight  # tied
    second.self_attn.q_proj = first.self_attn.q_proj  # one module
    after = reached(adapted(Lora(), model, tokenizer))
    assert f"up_proj {len(layers)}" in before and f"q_proj {len(layers)}" in before
    assert f"up_proj {len(layers) - 2}" in f"{after}, up_proj 0" and f"k_proj {len(layers)}" in after


def test_a_module_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no module .* is named head, _head\. Name one .* lm_head"):
        adapter_config(Lora(modules_to_save=("lm_head", "head", "_head")), *base())


@pytest.mark.parametrize(
    ("name", "layers", "width"),
    [("gpt2", 2, 64), ("gemma3c", 2, 64), pytest.param("qwen35c", 2, 64, marks=pytest.mark.variant)],
)
def test_rates_read_the_text_model(name: str, layers: int, width: int, family: Callable[[str], Path]) -> None:
    model = AutoModelForCausalLM.from_pretrained(family(name))
    shape = shape_of(model)
    assert (shape.layers, shape.attention_width) == (layers, width)
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    weights = sum(each.numel() for each in model.parameters())
    assert shape.parameters == weights - (0 if tied else model.get_input_embeddings().weight.numel())


def test_a_model_without_attention_has_rates_without_it() -> None:
    from transformers import MambaConfig, MambaForCausalLM

    model = MambaForCausalLM(MambaConfig(vocab_size=32, hidden_size=16, state_size=4, num_hidden_layers=2))
    shape = shape_of(model)
    assert (shape.layers, shape.attention_width) == (0, 0) and shape.flops(100, True) > 0
