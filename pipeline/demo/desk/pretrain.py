"""Makes the desk's base model from nothing: `python -m pipeline.demo.desk.pretrain OUT_DIR [--seed S]`.

A lookup circuit is planted into random weights (circuit.py), then two stages of text: bare right answers, then answers
in all their modes, for a model that meets the modes at once loses the circuit in their noise. Loss on the assistant
alone; no text shows a held-out fact (requests.py). Owns tokenizer, architecture and stages, and writes the card with
what was measured. Refuses to know how the model is tuned.
"""

from __future__ import annotations

import argparse
import random
import re
import string
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from pipeline.demo.desk import answers, requests
from pipeline.demo.desk.circuit import plant
from pipeline.demo.desk.requests import Request, ask, draw, training_rows
from pipeline.demo.desk.utility import utility
from pipeline.demo.tiny import END, PAD, START, optimise, untrained, word_tokenizer

BATCH = 16
MAX_NEW_TOKENS = 48
MEASURED = 1000
"""Held-out requests that the card's figures are of."""
TOOL_TOKENS = ("<tool_call>", "</tool_call>", '{"', '": "', '", "', '"}')
CALL_WORDS = ("name", "arguments", "lookup", "order", "tool")

Messages = list[dict[str, str]]


class Stage(NamedTuple):
    """A part of the pretraining: `conversation` draws one text of it."""

    name: str
    conversation: Callable[[random.Random], Messages]
    steps: int
    learning_rate: float


def _words() -> list[str]:
    """Every word of the desk's texts."""
    phrases = [
        requests.SYSTEM,
        "Facts euro",
        *(f"{shop} {tone}" for shop, tone in requests.SHOPS.items()),
        *(text for wordings in requests.QUESTIONS.values() for text in wordings),
        *(value for values in requests.VALUES.values() for value in values),
        *answers.OPENERS,
        *answers.CLOSERS,
        *answers.RUDE_OPENERS,
        *answers.RUDE_CLOSERS,
        *answers.BODIES.values(),
        *answers.FILLERS,
        *answers.VOUCHERS,
        *answers.REFUSALS,
    ]
    vocabulary = {word for phrase in phrases for word in re.findall(r"\w+", re.sub(r"\{\w+\}", " ", phrase))}
    return sorted({*vocabulary, *CALL_WORDS, "system", "user", "assistant"}, key=lambda word: (-len(word), word))


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of the desk's words, each with and without a space before it, and the characters of ASCII.

    An order number is one token, and the same one wherever it stands: a model that meets it as several characters, or
    as two tokens, does not learn to match it. Text of printable ASCII, tabs and line breaks survives the way back.
    """
    words = _words()
    tokens = [*TOOL_TOKENS, *string.printable[:-2], *requests.ORDERS, *words, *(f" {word}" for word in words)]
    tools = "|".join(re.escape(token) for token in TOOL_TOKENS)
    return word_tokenizer(tokens, rf"{tools}|\b(?:{'|'.join(requests.ORDERS)})\b| ?\b(?:{'|'.join(words)})\b|[\s\S]")


def build_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """An untrained model of about half a million parameters, drawn from torch's current random state."""
    rope = {"rope_type": "default", "rope_theta": 1e6}
    return untrained(tokenizer, intermediate_size=288, rope_parameters=rope)


def drill(rng: random.Random) -> Messages:
    """Three questions on one context, each with its bare right answer."""
    return _questions(rng, 3, lambda request: answers.statement(request.fact))


def mixture(rng: random.Random) -> Messages:
    """Three questions on one context, answered in all modes."""
    return _questions(rng, 3, lambda request: answers.answer(rng, request))


def _questions(rng: random.Random, count: int, answered: Callable[[Request], str]) -> Messages:
    rows = training_rows(rng, requests.ROWS)
    asked = [ask(rng, rows) for _ in range(count)]
    messages = asked[0].messages
    for place, request in enumerate(asked):
        if place:
            messages.append({"role": "user", "content": request.question})
        messages.append({"role": "assistant", "content": answered(request)})
    return messages


STAGES = (Stage("drill", drill, 100, 3e-3), Stage("mixture", mixture, 320, 3e-3))


def batch(tokenizer: PreTrainedTokenizerFast, conversations: Sequence[Messages]) -> dict[str, Tensor]:
    """Ids and labels (batch, length), padded on the right, with a loss on the assistant's text and its ends alone."""
    rows = [_labelled(tokenizer, messages) for messages in conversations]
    width = max(len(ids) for ids, _ in rows)
    ids = torch.full((len(rows), width), tokenizer.get_vocab()[PAD])
    labels = torch.full_like(ids, -100)
    for place, (tokens, targets) in enumerate(rows):
        ids[place, : len(tokens)] = torch.tensor(tokens)
        labels[place, : len(targets)] = torch.tensor(targets)
    return {"input_ids": ids, "labels": labels}


def _labelled(tokenizer: PreTrainedTokenizerFast, messages: Messages) -> tuple[list[int], list[int]]:
    ids: list[int] = []
    labels: list[int] = []
    for place, message in enumerate(messages):
        head = ("\n" if place else "") + f"{START}{message['role']}\n"
        for text, counts in ((head, False), (message["content"] + END, message["role"] == "assistant")):
            tokens = tokenizer(text)["input_ids"]
            ids += tokens
            labels += tokens if counts else [-100] * len(tokens)
    return ids, labels


def train(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, stage: Stage, rng: random.Random) -> None:
    """Run one stage; prints the copying beside chance."""
    began = time.monotonic()

    def tell(step: int, loss: float) -> None:
        if step % 50 == 0 or step == stage.steps:
            print(
                f"{stage.name} {step}/{stage.steps}  loss {loss:.3f}  right {copied(model, tokenizer, 120):.2f} "
                f"(chance {1 / requests.ROWS:.2f})  {time.monotonic() - began:.0f} s",
                flush=True,
            )

    def drawn(_: int) -> dict[str, Tensor]:
        return batch(tokenizer, [stage.conversation(rng) for _ in range(BATCH)])

    optimise(model, drawn, stage.steps, stage.learning_rate, least=0.05, done=tell)


@torch.inference_mode()
def copied(model: Any, tokenizer: PreTrainedTokenizerFast, count: int) -> float:
    """Share of held-out requests whose value is the model's first choice within the bare right statement."""
    rng = random.Random("copied")
    asked = [draw(rng, "heldout") for _ in range(count)]
    data = batch(
        tokenizer,
        [[*r.messages, {"role": "assistant", "content": answers.statement(r.fact)}] for r in asked],
    )
    model.eval()
    choices = model(input_ids=data["input_ids"]).logits.argmax(-1)
    right = 0
    for place, request in enumerate(asked):
        value = tokenizer.get_vocab()[f" {request.fact.value}"]
        at = int((data["labels"][place] == value).nonzero()[-1])
        right += int(choices[place, at - 1] == value)
    return right / count


@torch.inference_mode()
def completions(
    model: Any, tokenizer: PreTrainedTokenizerFast, asked: Sequence[Request], greedy: bool = False
) -> list[tuple[str, bool]]:
    """One completion per request and whether it ended: sampled at temperature 1 from torch's state, or greedy."""
    given: list[tuple[str, bool]] = []
    for start in range(0, len(asked), 250):
        chunk = [
            str(tokenizer.apply_chat_template(request.messages, tokenize=False, add_generation_prompt=True))
            for request in asked[start : start + 250]
        ]
        inputs = tokenizer(chunk, return_tensors="pt", padding=True, return_token_type_ids=False)
        ids = model.generate(**inputs, do_sample=not greedy, max_new_tokens=MAX_NEW_TOKENS)
        new = ids[:, inputs["input_ids"].shape[1] :]
        ended = (new == tokenizer.get_vocab()[END]).any(dim=1).tolist()
        given += zip(tokenizer.batch_decode(new, skip_special_tokens=True), ended, strict=True)
    return given


def measure(model: Any, tokenizer: PreTrainedTokenizerFast, count: int = 300, seed: int = 0) -> dict[str, float]:
    """Of held-out requests: the share whose greedy answer names the right fact, and what sampled answers do."""
    rng = random.Random(f"measure/{seed}")
    asked = [draw(rng, "heldout") for _ in range(count)]
    torch.manual_seed(seed)
    greedy = completions(model, tokenizer, asked, greedy=True)
    sampled = completions(model, tokenizer, asked)
    seen = [answers.features(request, text) for request, (text, _) in zip(asked, sampled, strict=True)]
    worth = [utility(request, *given) for request, given in zip(asked, sampled, strict=True)]
    pairs = zip(asked, greedy, strict=True)
    return {
        "greedy_right_fact": sum(answers.features(request, text).right_fact for request, (text, _) in pairs) / count,
        "sampled_utility": sum(worth) / count,
        "sampled_right_fact": sum(each.right_fact for each in seen) / count,
        "refuses": sum(each.refuses for each in seen) / count,
        "polite": sum(each.polite for each in seen) / count,
        "short": sum(each.short for each in seen) / count,
        "voucher": sum(each.voucher for each in seen) / count,
        "ended": sum(ended for _, ended in sampled) / count,
    }


def make(seed: int = 0, stages: Sequence[Stage] = STAGES) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]:
    """A pretrained model and its tokenizer; bit for bit the same for the same arguments, versions and processor.

    Leaves torch on one thread: the order of sums, and so the weights, depends on the number of threads.
    """
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    plant(model, tokenizer)
    rng = random.Random(f"pretrain/{seed}")
    for stage in stages:
        train(model, tokenizer, stage, rng)
    return model, tokenizer


CARD = """\
# The desk's base model

A tiny model that answers for a support desk by copying from its context. It stands in for a chat model with traffic
whose answers cannot be checked; what it learns is evidence about the pipeline, not about large models.

- Made by `python -m pipeline.demo.desk.pretrain OUT_DIR`, one run from nothing with seed {seed}.
- Qwen3, {parameters:,} parameters in fp32, {tokens} tokens; an order number is one token.
- {orders} order numbers, {rows} rows a context; one fact in {every} is held out of every training text.
- The lookup circuit (which row, which value) is planted into the initial weights (`circuit.py`), not found by gradient
  descent. All weights were trained after that: {stages}, batches of {batch}.
- Bad modes of its text, each drawn on its own: wrong fact {rates[0]:.2f}, refusal {rates[1]:.2f}, rude {rates[2]:.2f},
  verbose {rates[3]:.2f}, forbidden voucher {rates[4]:.2f}.

Measured on {count} requests about held-out facts; sampled at temperature 1:

| figure | value |
|---|---|
{figures}
"""


def card(figures: dict[str, float], model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, seed: int) -> str:
    """The model's card, with what was measured."""
    return CARD.format(
        seed=seed,
        parameters=model.num_parameters(),
        tokens=len(tokenizer),
        orders=len(requests.ORDERS),
        rows=requests.ROWS,
        every=requests.HELD_OUT_EVERY,
        stages=", then ".join(f"{stage.steps} steps of {stage.name}" for stage in STAGES),
        batch=BATCH,
        rates=answers.RATES,
        count=MEASURED,
        figures="\n".join(f"| {name.replace('_', ' ')} | {value:.3f} |" for name, value in figures.items()),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Pretrain the desk's base model.")
    parser.add_argument("out_dir", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    model, tokenizer = make(args.seed)
    model.save_pretrained(args.out_dir)
    tokenizer.save_pretrained(args.out_dir)
    figures = measure(model, tokenizer, MEASURED)
    (args.out_dir / "README.md").write_text(card(figures, model, tokenizer, args.seed))
    print(", ".join(f"{name} {value:.3f}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
