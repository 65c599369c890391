"""A model's stop ids, and nothing else of what its folder says about sampling: vLLM leaves out a repetition penalty or
top_k of `generation_config.json` too (`--generation-config vllm`). For processes that have loaded torch."""

import sys
from contextlib import suppress
from importlib import import_module
from typing import Any

import jinja2
import torch
import transformers
from transformers import AutoConfig, GenerationConfig

from pipeline.core.storage import digest_json
from pipeline.serving.inference import PROBES, Decoding, Messages

if "sklearn" not in sys.modules:
    # transformers takes it for assisted decoding alone; with its scipy and pandas it is a second of each start.
    sys.modules["sklearn"] = None  # pyright: ignore[reportArgumentType]
    with suppress(ImportError):  # where somebody has asked for it before, transformers insists
        import_module("transformers.generation.candidate_generator")
    del sys.modules["sklearn"]


def stop_ids(folder: str, tokenizer: Any) -> tuple[int, ...]:
    """Token ids that end a completion: those of config.json, of generation_config.json and of the tokenizer. Empty
    where none of them names one: then only the limit ends it."""
    config: Any = AutoConfig.from_pretrained(folder)
    declared = [config.get_text_config().eos_token_id, tokenizer.eos_token_id]
    with suppress(OSError):  # there is no such file
        declared.append(GenerationConfig.from_pretrained(folder).eos_token_id)
    ids = [each if isinstance(each, list) else [each] for each in declared]
    return tuple(sorted({int(id) for some in ids for id in some if id is not None}))


def settings(stops: tuple[int, ...], tokenizer: Any, max_new_tokens: int | None = None) -> GenerationConfig:
    """What `generate` is to go by: the stop ids, a length, and the likeliest token of the scores that it is given."""
    ends = {"eos_token_id": list(stops) or None, "pad_token_id": tokenizer.pad_token_id}
    if max_new_tokens is None:
        return GenerationConfig(**ends)
    return GenerationConfig(**ends, do_sample=False, max_new_tokens=max_new_tokens)


class SeededDraw:
    """A draw from softmax(logits / temperature) whose random numbers are each answer's own. The token is the largest of
    p / q with q exponential (the Gumbel-max trick; arXiv 1611.00712), so the likeliest token of these scores is a draw,
    and two models under one seed make the same choice wherever they agree."""

    def __init__(self, seeds: list[int], temperature: float, device: torch.device) -> None:
        self._temperature = temperature
        self._generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        exponential = torch.empty_like(scores, dtype=torch.float32)
        for row, generator in zip(exponential, self._generators, strict=True):
            row.exponential_(generator=generator)
        return scores.float() / self._temperature - exponential.log()


def use_stop_ids_only(model: Any, stops: tuple[int, ...], tokenizer: Any) -> None:
    """Drop what a loaded model's folder says about sampling: `generate` fills what a call leaves open from there."""
    model.generation_config = settings(stops, tokenizer)


def precision() -> torch.dtype:
    """What every arm is served in here, whatever its weights were saved in."""
    return torch.bfloat16 if torch.cuda.is_available() else torch.float32


def decoding_of(folder: str, tokenizer: Any, stops: tuple[int, ...]) -> Decoding:
    """What decides this process's answers; needs no weights."""
    config: Any = AutoConfig.from_pretrained(folder).get_text_config()
    vocabulary = tokenizer.batch_decode([[id] for id in range(len(tokenizer))], skip_special_tokens=True)
    return Decoding(
        engine="transformers",
        version=f"{transformers.__version__}, torch {torch.__version__}",
        device=torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        dtype=str(precision()).removeprefix("torch."),
        stop_ids=stops,
        context=getattr(config, "max_position_embeddings", None),
        tokens_digest=digest_json([[token_ids(tokenizer, probe) for probe in PROBES], vocabulary]),
    )


def token_ids(tokenizer: Any, messages: Messages) -> list[int]:
    """What template and tokenizer make of a prompt; nothing where the template refuses it."""
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except (jinja2.TemplateError, ValueError):
        return []
    return tokenizer(text, add_special_tokens=False)["input_ids"]
