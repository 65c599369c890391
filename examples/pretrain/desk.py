"""Makes the desk's base model from nothing: `python -m examples.pretrain.desk OUT_DIR [--seed S]`.

A lookup circuit is planted into random weights (circuit.py). Two stages of text follow: bare right answers, then
answers in all their modes; a model that meets the modes at once loses the circuit in their noise. The loss is on the
assistant alone, and no text shows a held-out fact (pipeline/demo/desk/requests.py). The card gets the figures.
"""

from __future__ import annotations

import argparse
import random
import re
import string
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from examples.pretrain.circuit import plant
from examples.pretrain.tiny import END, PAD, START, optimise, untrained, word_tokenizer
from pipeline.demo.desk import conversation, requests
from pipeline.demo.desk.conversation import KINDS, Turn, draw_turn
from pipeline.demo.desk.requests import Request, ask, training_rows
from pipeline.demo.desk.utility import utility
from pipeline.models.rendering import rendered

BATCH = 16
MAX_NEW_TOKENS = 48
MEASURED = 1000
"""Held-out requests that the card's figures are of."""
TOOL_TOKENS = ("<tool_call>", "</tool_call>", '{"name": "', '", "arguments": ', '{"order": "', '"}}')
DRAWN_WITH_TOOL = 0.5
"""Share of the texts in which the fact has to be looked up."""


# Tools are listed after the system's text; calls are written as in Hermes' and Qwen's templates.
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if not loop.first %}{{ '\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + (message['content'] or '') }}"
    "{% if loop.first and tools %}{{ '\nTools' }}{% for tool in tools %}"
    "{{ '\n' + tool.function.name + '(' + (tool.function.parameters.properties | join(', ')) + '): ' "
    "+ tool.function.description }}{% endfor %}{% endif %}"
    "{% for call in message['tool_calls'] or [] %}"
    "{% if not loop.first or message['content'] %}{{ '\n' }}{% endif %}"
    '{{ \'<tool_call>\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{% if call.function.arguments is string %}{{ call.function.arguments }}"
    "{% else %}{{ call.function.arguments | tojson }}{% endif %}{{ '}\n</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '\n<|im_start|>assistant\n' }}{% endif %}"
)


class PretrainingText(NamedTuple):
    """A conversation with its answers. `tool`: the tool is defined in it."""

    messages: list[dict[str, str]]
    tool: bool = False


class Stage(NamedTuple):
    """A part of the pretraining: `conversation` draws one text of it."""

    name: str
    conversation: Callable[[random.Random], PretrainingText]
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
        *conversation.OPENERS,
        *conversation.CLOSERS,
        *conversation.RUDE_OPENERS,
        *conversation.RUDE_CLOSERS,
        *conversation.BODIES.values(),
        *conversation.FILLERS,
        *conversation.VOUCHERS,
        *conversation.REFUSALS,
        f"Tools {requests.NAME} {requests.DEFINITION['function']['description']} order",
    ]
    vocabulary = {word for phrase in phrases for word in re.findall(r"\w+", re.sub(r"\{\w+\}", " ", phrase))}
    return sorted({*vocabulary, "system", "user", "assistant", "tool"}, key=lambda word: (-len(word), word))


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of the desk's words, each with and without a space before it, and the characters of ASCII.

    An order number is one token, and the same one wherever it stands: a model that meets it as several characters, or
    as two tokens, does not learn to match it. Text of printable ASCII, tabs and
    line breaks survives the way back.
    """
    words = _words()
    tokens = [*TOOL_TOKENS, *string.printable[:-2], *requests.ORDERS, *words, *(f" {word}" for word in words)]
    tools = "|".join(re.escape(token) for token in TOOL_TOKENS)
    pattern = rf"{tools}|\b(?:{'|'.join(requests.ORDERS)})\b| ?\b(?:{'|'.join(words)})\b|[\s\S]"
    return word_tokenizer(tokens, pattern, CHAT_TEMPLATE)


def build_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """An untrained model of about half a million parameters, drawn from torch's current random state."""
    rope = {"rope_type": "default", "rope_theta": 1e6}
    return untrained(tokenizer, intermediate_size=288, rope_parameters=rope)


def drill(rng: random.Random) -> PretrainingText:
    """Questions on one context, each with its bare right answer, or the right call."""

    def right(request: Request) -> str:
        return conversation.statement(request.fact) if request.shown else requests.call_text(request.order)

    return _text(rng, right)


def mixture(rng: random.Random) -> PretrainingText:
    """Questions on one context, answered in all modes."""
    return _text(rng, lambda request: conversation.answer(rng, request))


def _text(rng: random.Random, answered: Callable[[Request], str]) -> PretrainingText:
    if rng.random() < DRAWN_WITH_TOOL:
        return _with_tool(rng, answered)
    rows = training_rows(rng, requests.ROWS)
    asked = [ask(rng, rows) for _ in range(3)]
    messages = asked[0].messages
    for place, request in enumerate(asked):
        if place:
            messages.append({"role": "user", "content": request.question})
        messages.append({"role": "assistant", "content": answered(request)})
    return PretrainingText(messages)


def _with_tool(rng: random.Random, answered: Callable[[Request], str]) -> PretrainingText:
    """A look-up, and where it is the right one its result and two questions."""
    turn = conversation.begin(rng, "train", tool=True)
    text = answered(turn.request)
    result = conversation.after_call(turn, text)
    if result is None:
        return PretrainingText([*turn.messages, {"role": "assistant", "content": text}], tool=True)
    more = conversation.second(result, answered(result.request), conversation.another(rng, result.request))
    return PretrainingText([*more.messages, {"role": "assistant", "content": answered(more.request)}], tool=True)


STAGES = (Stage("drill", drill, 100, 3e-3), Stage("mixture", mixture, 320, 3e-3))


def batch(tokenizer: PreTrainedTokenizerFast, conversations: Sequence[PretrainingText]) -> dict[str, Tensor]:
    """Ids and labels (batch, length), padded on the right, with a loss on the assistant's text and its ends alone."""
    rows = [_labelled(tokenizer, text) for text in conversations]
    width = max(len(ids) for ids, _ in rows)
    ids = torch.full((len(rows), width), tokenizer.get_vocab()[PAD])
    labels = torch.full_like(ids, -100)
    for place, (tokens, targets) in enumerate(rows):
        ids[place, : len(tokens)] = torch.tensor(tokens)
        labels[place, : len(targets)] = torch.tensor(targets)
    return {"input_ids": ids, "labels": labels}


def _labelled(tokenizer: PreTrainedTokenizerFast, text: PretrainingText) -> tuple[list[int], list[int]]:
    ids: list[int] = []
    labels: list[int] = []
    before = ""
    for place, message in enumerate(text.messages):
        whole = rendered(tokenizer, _conversation(text, place + 1), add_generation_prompt=False)
        new, before = whole[len(before) :], whole
        head = ("\n" if place else "") + f"{START}{message['role']}\n"
        for part, counts in ((head, False), (new.removeprefix(head), message["role"] == "assistant")):
            tokens = tokenizer(part)["input_ids"]
            ids += tokens
            labels += tokens if counts else [-100] * len(tokens)
    return ids, labels


def _conversation(text: PretrainingText, end: int) -> list[dict[str, str]]:
    head = [{"role": "tools", "content": requests.TOOLS}] if text.tool else []
    return [*head, *text.messages[:end]]


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
    """Share of held-out turns, but those that call, whose value is the model's first choice within the bare right
    statement."""
    rng = random.Random("copied")
    asked = [draw_turn(rng, "heldout", KINDS[n % len(KINDS)]) for n in range(count)]
    asked = [turn for turn in asked if turn.kind != "call"]
    texts = [
        PretrainingText([*t.messages, {"role": "assistant", "content": conversation.statement(t.request.fact)}], t.tool)
        for t in asked
    ]
    data = batch(tokenizer, texts)
    model.eval()
    choices = model(input_ids=data["input_ids"]).logits.argmax(-1)
    right = 0
    for place, turn in enumerate(asked):
        value = tokenizer.get_vocab()[f" {turn.request.fact.value}"]
        at = int((data["labels"][place] == value).nonzero()[-1])
        right += int(choices[place, at - 1] == value)
    return right / len(asked)


@torch.inference_mode()
def completions(
    model: Any, tokenizer: PreTrainedTokenizerFast, asked: Sequence[Turn], greedy: bool = False
) -> list[tuple[str, bool]]:
    """One completion per turn and whether it ended: sampled at temperature 1 from torch's state, or greedy."""
    given: list[tuple[str, bool]] = []
    for start in range(0, len(asked), 250):
        chunk = [rendered(tokenizer, turn.conversation) for turn in asked[start : start + 250]]
        inputs = tokenizer(chunk, return_tensors="pt", padding=True, return_token_type_ids=False)
        ids = model.generate(**inputs, do_sample=not greedy, max_new_tokens=MAX_NEW_TOKENS)
        new = ids[:, inputs["input_ids"].shape[1] :]
        ended = (new == tokenizer.get_vocab()[END]).any(dim=1).tolist()
        given += zip(tokenizer.batch_decode(new, skip_special_tokens=True), ended, strict=True)
    return given


def measure(model: Any, tokenizer: PreTrainedTokenizerFast, count: int = 300, seed: int = 0) -> dict[str, float]:
    """Of held-out turns of each kind: the share whose greedy answer is right, and what sampled answers do."""
    rng = random.Random(f"measure/{seed}")
    asked = [draw_turn(rng, "heldout", KINDS[n % len(KINDS)]) for n in range(count)]
    torch.manual_seed(seed)
    greedy = completions(model, tokenizer, asked, greedy=True)
    sampled = completions(model, tokenizer, asked)
    right = [
        conversation.features(turn.request, text).right_fact for turn, (text, _) in zip(asked, greedy, strict=True)
    ]
    seen = [conversation.features(turn.request, text) for turn, (text, _) in zip(asked, sampled, strict=True)]
    worth = [utility(turn.request, *given) for turn, given in zip(asked, sampled, strict=True)]

    def of_kind(kind: str, values: Sequence[float]) -> float:
        return fmean(value for turn, value in zip(asked, values, strict=True) if turn.kind == kind)

    return {
        "greedy_right_fact": fmean(right),
        **{f"greedy_right_fact_({kind})": of_kind(kind, right) for kind in KINDS},
        "sampled_utility": fmean(worth),
        **{f"sampled_utility_({kind})": of_kind(kind, worth) for kind in KINDS},
        "sampled_right_fact": fmean(each.right_fact for each in seen),
        "refuses": fmean(each.refuses for each in seen),
        "polite": fmean(each.polite for each in seen),
        "short": fmean(each.short for each in seen),
        "voucher": fmean(each.voucher for each in seen),
        "ended": fmean(ended for _, ended in sampled),
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

- Made by `python -m examples.pretrain.desk OUT_DIR`, one run from nothing with seed {seed}.
- Qwen3, {parameters:,} parameters in fp32, {tokens} tokens; an order number is one token.
- {orders} order numbers, {rows} rows a context; one fact in {every} is held out of every training text.
- The lookup circuit (which row, which value) is planted into the initial weights (`examples/pretrain/circuit.py`),
  not found by gradient descent. All weights were trained after that: {stages}, batches of {batch}.
- Bad modes of its text, each drawn on its own: wrong fact {rates[0]:.2f}, refusal {rates[1]:.2f}, rude {rates[2]:.2f},
  verbose {rates[3]:.2f}, forbidden voucher {rates[4]:.2f}. Of look-ups: another order {other:.2f}, none {none:.2f}.
- Four kinds of turns: the facts stand beside the question (facts), they have to be looked up (call), they were
  (result), or the question is a second one about the same order (second). It calls `lookup_order` in the form of
  Hermes and Qwen.

Measured on {count} turns about held-out facts, a quarter of each kind; sampled at temperature 1:

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
        rates=conversation.RATES,
        other=conversation.OTHER_ORDER,
        none=conversation.NO_LOOKUP,
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
    (args.out_dir / "README.md").write_text(card(figures, model, tokenizer, args.seed), encoding="utf-8")
    print(", ".join(f"{name} {value:.3f}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
