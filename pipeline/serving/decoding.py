"""What a model is decoded with: its stop ids, and nothing else of what its folder says about sampling.

A folder's `generation_config.json` may hold a repetition penalty, a top_k, forbidden n-grams: transformers applies each
of them wherever a call leaves it open. Training, its validation, serving and evaluation draw from the model itself, as
vLLM does under `--generation-config vllm`. For processes that have loaded torch.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
import transformers
from transformers import AutoConfig, GenerationConfig

from pipeline.serving.sample import Decoding, Sampling
from pipeline.storage import digest_json


def stop_ids(folder: str, tokenizer: Any) -> tuple[int, ...]:
    """Token ids that end a completion: those of config.json, of generation_config.json and of the tokenizer.

    Empty where none of them names one: then only the limit ends it.
    """
    config: Any = AutoConfig.from_pretrained(folder)
    declared = [config.get_text_config().eos_token_id, tokenizer.eos_token_id]
    with suppress(OSError):  # there is no such file
        declared.append(GenerationConfig.from_pretrained(folder).eos_token_id)
    ids = [each if isinstance(each, list) else [each] for each in declared]
    return tuple(sorted({int(id) for some in ids for id in some if id is not None}))


def settings(stops: tuple[int, ...], tokenizer: Any, plan: Sampling | None = None) -> GenerationConfig:
    """What `generate` is to go by: a sampling plan's temperature and length, or, without a plan, the stop ids alone."""
    ends = {"eos_token_id": list(stops) or None, "pad_token_id": tokenizer.pad_token_id}
    if plan is None:
        return GenerationConfig(**ends)
    return GenerationConfig(
        **ends,
        do_sample=plan.temperature > 0,
        temperature=plan.temperature or None,
        top_k=0,
        top_p=1.0,
        max_new_tokens=plan.max_completion_tokens,
    )


def use_stop_ids_only(model: Any, stops: tuple[int, ...], tokenizer: Any) -> None:
    """Drop what a loaded model's folder says about sampling: `generate` fills what a call leaves open from there."""
    model.generation_config = settings(stops, tokenizer)


def precision() -> torch.dtype:
    """What every arm is served in here, whatever its weights were saved in."""
    return torch.bfloat16 if torch.cuda.is_available() else torch.float32


def decoding_of(model: Any, tokenizer: Any, stops: tuple[int, ...], asked: list[list[int]]) -> Decoding:
    """What decides this process's answers. `asked`: token ids of its prompts."""
    config: Any = model.config.get_text_config()
    vocabulary = tokenizer.batch_decode([[id] for id in range(len(tokenizer))], skip_special_tokens=True)
    return Decoding(
        engine="transformers",
        version=f"{transformers.__version__}, torch {torch.__version__}",
        device=torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        dtype=str(model.dtype).removeprefix("torch."),
        stop_ids=stops,
        context=getattr(config, "max_position_embeddings", None),
        tokens_digest=digest_json([asked, vocabulary]),
    )
