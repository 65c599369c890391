"""A model directory in this process: what it makes of requests, in batches, by its stop ids and nothing else of what
its folder says about sampling: vLLM leaves out a repetition penalty or top_k of `generation_config.json` too
(`--generation-config vllm`). For processes that have loaded torch."""

import re
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from importlib import import_module
from typing import Any

import jinja2
import torch
import transformers
from transformers import GenerationConfig

from pipeline.core.conversation import in_one_form
from pipeline.core.storage import digest_json
from pipeline.core.thoughts import CLOSE, OPEN, opening
from pipeline.models.rendering import rendered
from pipeline.models.tokenizer import context_length, load_tokenizer, stop_ids
from pipeline.serving.inference import (
    PROBES,
    Answer,
    AnswerRequest,
    Decoding,
    Messages,
    Sampling,
    beyond_context,
    served_dtype,
    unanswerable,
)

if "sklearn" not in sys.modules:
    # transformers takes it for assisted decoding alone; with its scipy and pandas it is a second of each start.
    sys.modules["sklearn"] = None  # pyright: ignore[reportArgumentType]
    with suppress(ImportError):  # where somebody has asked for it before, transformers insists
        import_module("transformers.generation.candidate_generator")
    del sys.modules["sklearn"]


def settings(stops: tuple[int, ...], tokenizer: Any, max_new_tokens: int | None = None) -> GenerationConfig:
    """What `generate` is to go by: the stop ids, a length, and the likeliest token of the scores that it is given."""
    ends = {"eos_token_id": list(stops) or None, "pad_token_id": tokenizer.pad_token_id}
    if max_new_tokens is None:
        return GenerationConfig(**ends)
    return GenerationConfig(**ends, do_sample=False, max_new_tokens=max_new_tokens)


OPENING_TOKENS = 16
"""Of the end of a prompt, where a template may open a thought."""
TAG = re.compile(f"{OPEN}|{CLOSE}")


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


def decoding_of(folder: str, tokenizer: Any, stops: tuple[int, ...]) -> Decoding:
    """What decides this process's answers; needs no weights."""
    vocabulary = tokenizer.batch_decode([[id] for id in range(len(tokenizer))], skip_special_tokens=True)
    return Decoding(
        engine="transformers",
        version=f"{transformers.__version__}, torch {torch.__version__}",
        device=torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        dtype=served_dtype(torch.cuda.is_available()),
        stop_ids=stops,
        context=context_length(folder),
        tokens_digest=digest_json([[token_ids(tokenizer, probe) for probe in PROBES], vocabulary]),
    )


def token_ids(tokenizer: Any, messages: Messages) -> list[int]:
    """What template and tokenizer make of a prompt; nothing where the template refuses it."""
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except (jinja2.TemplateError, ValueError):
        return []
    return tokenizer(text, add_special_tokens=False)["input_ids"]


class RequestRefused(Exception):
    """A request that this model cannot answer."""


class LoadedModel:
    """One model directory; its weights are read when they are first needed."""

    def __init__(self, folder: str, batch_size: int) -> None:
        self.folder, self.batch_size = folder, batch_size
        self.tokenizer: Any = load_tokenizer(folder)
        self.stops = stop_ids(folder, self.tokenizer)
        self.decoding: Decoding = decoding_of(folder, self.tokenizer, self.stops)

    @cached_property
    def model(self) -> Any:
        # cuDNN's attention sums a long key in another order each time, and plans again for each length.
        torch.backends.cuda.enable_cudnn_sdp(False)
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(self.folder, dtype=self.decoding.dtype)
        model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
        use_stop_ids_only(model, self.stops, self.tokenizer)
        return model

    def prompt(self, request: AnswerRequest, limit: int) -> list[int]:
        """The token ids of a request. Raises RequestRefused where the template or the context does not take it."""
        try:
            text = rendered(self.tokenizer, request.messages)
        except (jinja2.TemplateError, ValueError) as error:
            roles = " ".join(message["role"] for message in request.messages)
            raise RequestRefused(f"its chat template does not take messages of {roles}: {error}") from error
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        if why := beyond_context(request.messages, len(ids), limit, self.decoding.context):
            raise RequestRefused(why)
        return ids

    def answers(self, requests: list[AnswerRequest], sampling: Sampling) -> Iterator[Answer]:
        """In batches, the longest prompts first: what does not fit in memory shows at once."""
        prompts: dict[int, list[int]] = {}
        for i, request in enumerate(requests):
            try:
                prompts[i] = self.prompt(request, sampling.max_completion_tokens)
            except RequestRefused as refusal:
                if not sampling.skip_unanswerable:
                    raise
                yield unanswerable(request.key, str(refusal))
        queue = sorted(prompts, key=lambda i: (-len(prompts[i]), requests[i].key))
        for first in range(0, len(queue), self.batch_size):
            batch = queue[first : first + self.batch_size]
            begun = time.monotonic()
            rows = self.generate([prompts[i] for i in batch], [requests[i].seed for i in batch], sampling)
            latency = time.monotonic() - begun
            for i, row in zip(batch, rows, strict=True):
                end = next((n for n, token in enumerate(row) if token in self.stops), len(row))
                yield Answer(
                    key=requests[i].key,
                    text=in_one_form(self.text(prompts[i], row[:end]), requests[i].messages),
                    tokens=end,
                    prompt_tokens=len(prompts[i]),
                    stop="stop" if end < len(row) else "length",
                    latency_s=latency,
                )

    def text(self, prompt: list[int], drawn: list[int]) -> str:
        """An answer with both tags of its thought: a tag may be a special token, or stand at the prompt's end."""
        opened = opening(self.tokenizer.decode(prompt[-OPENING_TOKENS:]))
        added = {id: token.content for id, token in self.tokenizer.added_tokens_decoder.items() if token.special}
        if not any(TAG.fullmatch(added.get(id, "")) for id in drawn):
            return opened + self.tokenizer.decode(drawn, skip_special_tokens=True)
        return opened + self.tokenizer.decode([id for id in drawn if id not in added or TAG.fullmatch(added[id])])

    def generate(
        self, prompts: list[list[int]], seeds: list[int], sampling: Sampling, top_p: float = 1.0, **how: Any
    ) -> list[list[int]]:
        """Token ids of each completion; what follows the first stop id is of no meaning. `how`: as the model's own
        `generate` takes it."""
        inputs = self.tokenizer.pad({"input_ids": prompts}, return_tensors="pt").to(self.model.device)
        width = inputs["input_ids"].shape[1]
        draw = transformers.LogitsProcessorList()
        if sampling.temperature > 0:
            # the most likely tokens are those of p(token | temperature), as vLLM counts them
            likely = [transformers.TemperatureLogitsWarper(sampling.temperature), transformers.TopPLogitsWarper(top_p)]
            draw.extend(likely if top_p < 1 else [])
            draw.append(SeededDraw(seeds, 1.0 if top_p < 1 else sampling.temperature, self.model.device))
        config = settings(self.stops, self.tokenizer, sampling.max_completion_tokens)
        with torch.inference_mode():
            output = self.model.generate(**inputs, generation_config=config, logits_processor=draw, **how)
        return output[:, width:].tolist()
