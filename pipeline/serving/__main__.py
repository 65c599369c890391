"""The serving process: `python -m pipeline.serving REQUEST RESPONSE PARENT`.

Loads one model, answers one request, exits; PARENT is the pid of who starts it, and it ends when that one does.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pipeline.processes import die_with_parent
from pipeline.serving.decoding import decoding_of, precision, settings, stop_ids, use_stop_ids_only
from pipeline.serving.sample import Completion, SamplingRequest, SamplingResponse
from pipeline.storage import write_atomically


def main(request_path: str, response_path: str) -> None:
    request = SamplingRequest.model_validate_json(Path(request_path).read_bytes())
    write_atomically(Path(response_path), generate(request).model_dump_json())


def generate(request: SamplingRequest) -> SamplingResponse:
    """Completions of every prompt, in batches ordered by length; the result follows the prompts."""
    plan = request.sampling
    torch.set_num_threads(plan.threads)
    torch.manual_seed(plan.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = AutoTokenizer.from_pretrained(request.model.uri, padding_side="left")
    model: Any = AutoModelForCausalLM.from_pretrained(request.model.uri, dtype=precision())
    model.to(device).eval()
    stops = stop_ids(request.model.uri, tokenizer)
    use_stop_ids_only(model, stops, tokenizer)
    config = settings(stops, tokenizer, plan)
    texts = [tokenizer.apply_chat_template(p, tokenize=False, add_generation_prompt=True) for p in request.prompts]
    queue = [i for i in sorted(range(len(texts)), key=lambda i: (len(texts[i]), i)) for _ in range(plan.samples)]
    results: list[list[Completion]] = [[] for _ in texts]
    started = spoken = time.monotonic()
    for first in range(0, len(queue), plan.batch_size):
        batch = queue[first : first + plan.batch_size]
        begun = time.monotonic()
        inputs = tokenizer([texts[i] for i in batch], return_tensors="pt", padding=True, add_special_tokens=False)
        with torch.inference_mode():
            output = model.generate(**inputs.to(device), generation_config=config)
        latency = time.monotonic() - begun
        for index, row in zip(batch, output[:, inputs["input_ids"].shape[1] :].tolist(), strict=True):
            end = next((n for n, token in enumerate(row) if token in stops), len(row))
            results[index].append(
                Completion(
                    text=tokenizer.decode(row[:end], skip_special_tokens=True),
                    tokens=end,
                    finished=end < len(row),
                    latency_s=latency,
                )
            )
        if time.monotonic() - spoken > 3 or first + plan.batch_size >= len(queue):
            spoken, done = time.monotonic(), first + len(batch)
            rate = done / (spoken - started)
            print(f"serving: {done} of {len(queue)} completions, {rate:.0f}/s", flush=True)
    asked = tokenizer(texts, add_special_tokens=False)["input_ids"]
    return SamplingResponse(completions=results, decoding=decoding_of(model, tokenizer, stops, asked))


if __name__ == "__main__":
    die_with_parent(parent=int(sys.argv[3]))
    main(*sys.argv[1:3])
