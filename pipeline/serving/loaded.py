"""A model directory in this process: what it makes of requests, in batches. For processes that have loaded torch."""

import time
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import jinja2
import torch
import transformers

from pipeline.core.chat_template import rendered
from pipeline.core.conversation import in_one_form
from pipeline.serving.decoding import SeededDraw, decoding_of, precision, settings, stop_ids, use_stop_ids_only
from pipeline.serving.inference import Answer, AnswerRequest, Decoding, Sampling, beyond_context, unanswerable


class RequestRefused(Exception):
    """A request that this model cannot answer."""


Watch = Callable[[list[list[int]]], None]
"""Is given the token ids of each completion so far, before the next one is drawn."""


class Watched:
    """Shows the tokens so far and changes no score. `width`: tokens of the prompt, with its padding."""

    def __init__(self, watch: Watch, width: int) -> None:
        self._watch, self._width = watch, width

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self._watch(input_ids[:, self._width :].tolist())
        return scores


class LoadedModel:
    """One model directory; its weights are read when they are first needed."""

    def __init__(self, folder: str, batch_size: int) -> None:
        self.folder, self.batch_size = folder, batch_size
        self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder, padding_side="left")
        self.stops = stop_ids(folder, self.tokenizer)
        self.decoding: Decoding = decoding_of(folder, self.tokenizer, self.stops)

    @cached_property
    def model(self) -> Any:
        # cuDNN's attention sums a long key in another order each time, and plans again for each length.
        torch.backends.cuda.enable_cudnn_sdp(False)
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(self.folder, dtype=precision())
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
                    text=in_one_form(self.tokenizer.decode(row[:end], skip_special_tokens=True), requests[i].messages),
                    tokens=end,
                    prompt_tokens=len(prompts[i]),
                    stop="stop" if end < len(row) else "length",
                    latency_s=latency,
                )

    def generate(
        self, prompts: list[list[int]], seeds: list[int], sampling: Sampling, watch: Watch | None = None
    ) -> list[list[int]]:
        """Token ids of each completion; what follows the first stop id is of no meaning. `watch` sees each step."""
        inputs = self.tokenizer.pad({"input_ids": prompts}, return_tensors="pt").to(self.model.device)
        width = inputs["input_ids"].shape[1]
        draw = transformers.LogitsProcessorList()
        if watch is not None:
            draw.append(Watched(watch, width))
        if sampling.temperature > 0:
            draw.append(SeededDraw(seeds, sampling.temperature, self.model.device))
        config = settings(self.stops, self.tokenizer, sampling.max_completion_tokens)
        with torch.inference_mode():
            output = self.model.generate(**inputs, generation_config=config, logits_processor=draw)
        return output[:, width:].tolist()
