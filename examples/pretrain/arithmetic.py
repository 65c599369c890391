"""Makes the demo's base model from nothing: `python -m examples.pretrain.arithmetic OUT_DIR [--steps N] [--seed S]`.

The result is the model kept in `pipeline/demo/model`. Its accuracy is designed: the text mixes right solutions with
systematic misconceptions, and tuning elicits the right mode. That is evidence about the pipeline alone.
"""

from __future__ import annotations

import argparse
import random
import re
import string
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from examples.pretrain.tiny import END, PAD, optimise, untrained, word_tokenizer
from pipeline.demo.task import NAMES, TEMPLATES, THINGS, Problem, mistaken_solution, problems

STEPS = 4000
BATCH = 32
LEARNING_RATE = 3e-3
MAX_NEW_TOKENS = 28
"""The longest solution in tokens, with room to spare."""
MISCONCEPTION_RATE = 0.55
"""Share of the pretraining text that is wrong: it sets the accuracy of the base model."""
_TEXT = " ".join(template for templates in TEMPLATES.values() for template in templates)
WORDS = tuple(sorted({*NAMES, *THINGS, *re.findall(r"[A-Za-z]+\b(?!})", _TEXT)}))
"""Every word that a prompt can hold."""


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of the task's words, each with and without a space before it, and the characters of ASCII.

    Text of printable ASCII, tabs and line breaks survives encoding and decoding; any other character is unknown.
    """
    words = (*WORDS, "system", "user", "assistant")
    tokens = ["####", *string.printable[:-2], *words, *(f" {word}" for word in words)]  # `a` is a word and a character
    return word_tokenizer(tokens, rf" ?\b(?:{'|'.join(words)})\b|####|[\s\S]")


def build_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """An untrained model of about half a million parameters, drawn from torch's current random state."""
    return untrained(tokenizer, intermediate_size=384)


def pretrain(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, pairs: Sequence[tuple[str, str]], log_every: int = 100
) -> None:
    """One pass over (prompt, completion) texts in batches of 32."""
    steps, began = len(pairs) // BATCH, time.monotonic()

    def tell(step: int, loss: float) -> None:
        if step % log_every == 0 or step == steps:
            print(f"step {step}/{steps}  loss {loss:.3f}  {time.monotonic() - began:.0f} s", flush=True)

    def batch(step: int) -> dict[str, Tensor]:
        return answer_batch(tokenizer, pairs[step * BATCH : (step + 1) * BATCH])

    optimise(model, batch, steps, LEARNING_RATE, done=tell)


def answer_batch(tokenizer: PreTrainedTokenizerFast, pairs: Sequence[tuple[str, str]]) -> dict[str, Tensor]:
    """Model inputs (batch, length) for (prompt, completion) texts, with a loss on the completion and its end alone."""
    prompts = tokenizer([prompt_text(tokenizer, prompt) for prompt, _ in pairs])["input_ids"]
    answers = tokenizer([completion + END for _, completion in pairs])["input_ids"]
    width = max(len(p) + len(a) for p, a in zip(prompts, answers, strict=True))
    ids = torch.full((len(pairs), width), tokenizer.get_vocab()[PAD])
    labels = torch.full_like(ids, -100)
    mask = torch.zeros_like(ids)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        end = len(prompt) + len(answer)
        ids[row, :end] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : end] = torch.tensor(answer)
        mask[row, :end] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def prompt_text(tokenizer: PreTrainedTokenizerFast, prompt: str) -> str:
    """The prompt as the model reads it, up to the start of the answer."""
    messages = [{"role": "user", "content": prompt}]
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


@torch.inference_mode()
def completions(
    model: Any, tokenizer: PreTrainedTokenizerFast, prompts: Sequence[str], greedy: bool = False, batch: int = 256
) -> list[str]:
    """One completion per prompt: sampled at temperature 1 from torch's current random state, or greedy."""
    texts: list[str] = []
    for start in range(0, len(prompts), batch):
        chunk = [prompt_text(tokenizer, prompt) for prompt in prompts[start : start + batch]]
        inputs = tokenizer(chunk, return_tensors="pt", padding=True, return_token_type_ids=False)
        ids = model.generate(**inputs, do_sample=not greedy, max_new_tokens=MAX_NEW_TOKENS)
        width = inputs["input_ids"].shape[1]
        texts += tokenizer.batch_decode(ids[:, width:], skip_special_tokens=True)
    return texts


def accuracy(model: Any, tokenizer: PreTrainedTokenizerFast, tests: Sequence[Problem], greedy: bool = False) -> float:
    """Share of problems whose completion ends in the right number after `####`."""
    texts = completions(model, tokenizer, [test.prompt for test in tests], greedy)
    return sum(text.partition("#### ")[2] == test.answer for text, test in zip(texts, tests, strict=True)) / len(tests)


def make(steps: int = STEPS, seed: int = 0) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]:
    """A pretrained model and its tokenizer; bit for bit the same for the same arguments, versions and processor.

    Leaves torch on one thread: the order of sums, and so the weights, depends on the number of threads.
    """
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    pretrain(model, tokenizer, pretraining_pairs(seed, steps * BATCH))
    return model, tokenizer


def pretraining_pairs(seed: int, n: int) -> list[tuple[str, str]]:
    """`n` (prompt, completion) texts, of which a share is mistaken."""
    rng = random.Random(f"misconceptions:{seed}")
    return [
        (problem.prompt, mistaken_solution(problem) if rng.random() < MISCONCEPTION_RATE else problem.solution)
        for problem in problems(seed, "pretrain", n)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Pretrain the demo's base model.")
    parser.add_argument("out_dir", type=Path)
    parser.add_argument(
        "--steps", type=int, default=STEPS, help="optimiser steps, about 0.1 s each (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    model, tokenizer = make(args.steps, args.seed)
    heldout = problems(0, "heldout", 1000)
    print(f"held-out accuracy at temperature 1: {accuracy(model, tokenizer, heldout):.3f}")
    print(f"held-out accuracy, greedy: {accuracy(model, tokenizer, heldout, greedy=True):.3f}")
    model.save_pretrained(args.out_dir)
    tokenizer.save_pretrained(args.out_dir)
    print(f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens -> {args.out_dir}")


if __name__ == "__main__":
    main()
