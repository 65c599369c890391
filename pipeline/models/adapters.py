"""The adapter of a training: PEFT's configuration of it, and its precision."""

from collections import defaultdict
from typing import Any

from peft import LoraConfig
from torch.nn import Linear, Parameter

from pipeline.recipe import Lora


def adapter_config(lora: Lora, model: Any, tokenizer: Any) -> LoraConfig:
    """Raises ValueError for modules to save, and for trainable tokens, that the model or the tokenizer lacks."""
    whole, names = list(lora.modules_to_save), [name for name, _ in model.named_modules()]
    if absent := [each for each in whole if not any(f".{name}".endswith(f".{each}") for name in names)]:
        raise ValueError(
            f"training.lora.modules_to_save: no module of the base model is named {', '.join(absent)}. Name one that "
            f"there is, such as {names[-1]}, or leave it out."
        )
    return LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        use_rslora=lora.rslora,
        use_dora=lora.dora,
        target_modules=lora.target_modules,
        exclude_modules=[*shared_modules(model), *modules_beside_the_text(model)] or None,
        modules_to_save=whole or None,
        ensure_weight_tying=bool(whole),
        trainable_token_indices=_token_ids(lora.trainable_tokens, model, tokenizer) or None,
        task_type="CAUSAL_LM",
    )


def _token_ids(tokens: tuple[str, ...], model: Any, tokenizer: Any) -> list[int]:
    vocabulary, rows = tokenizer.get_vocab(), len(model.get_input_embeddings().weight)
    if absent := [token for token in tokens if vocabulary.get(token, rows) >= rows]:
        raise ValueError(
            f"training.lora.trainable_tokens: {', '.join(map(repr, absent))} is no token of the base model's "
            f"tokenizer with one of the {rows} rows of its embedding. Add it to both, or leave it out."
        )
    return [vocabulary[token] for token in tokens]


def shared_modules(model: Any) -> list[str]:
    """Names of modules whose weight several layers use, but for a tied embedding: they get no adapter, for what one of
    the layers learned would be merged into all."""
    users: dict[int, list[str]] = defaultdict(list)
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(weight := getattr(module, "weight", None), Parameter):
            users[id(weight)].append(name)
    users.pop(id(model.get_input_embeddings().weight), None)
    return [name for names in users.values() if len(names) > 1 for name in names]


def modules_beside_the_text(model: Any) -> list[str]:
    """Linear layers of a composite that text does not pass through, such as a vision tower's."""
    if model.config.get_text_config() is model.config:
        return []
    text, head = model.get_decoder(), model.get_output_embeddings()
    read = {id(module) for module in (head, *text.modules())}
    return [name for name, module in model.named_modules() if isinstance(module, Linear) and id(module) not in read]


def keep_adapter_precision(model: Any) -> None:
    """What is trained under an adapter in fp32. TRL makes adapters on a base in 4 bits bf16, and PEFT copies a module
    that is trained whole in the base's precision: an update of 1e-6 is lost in both. PEFT loads a checkpoint's in fp32,
    so that a training that was resumed would be another one."""
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data = weight.data.float()
