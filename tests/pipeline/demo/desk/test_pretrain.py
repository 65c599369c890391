"""The desk's model: its tokenizer, what is planted into it, and what the kept weights can do."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pipeline.chat_template import for_template, rendered
from pipeline.demo.desk import MODEL_DIR, MODEL_SHA256, is_desk_model
from pipeline.demo.desk.answers import answer
from pipeline.demo.desk.circuit import order_codes, plant
from pipeline.demo.desk.conversation import KINDS, draw_turn
from pipeline.demo.desk.pretrain import (
    TOOL_TOKENS,
    PretrainingText,
    batch,
    build_model,
    build_tokenizer,
    drill,
    measure,
    mixture,
)
from pipeline.demo.desk.requests import ATTRIBUTES, ORDERS, VALUES, draw, is_held_out, row_text
from pipeline.demo.desk.tool import TOOLS, assistant_message, call_text
from pipeline.storage import digest_file

TOKENIZER = build_tokenizer()


def test_an_order_number_is_one_token_wherever_it_stands() -> None:
    for order in ORDERS:
        for text in (f"{order} DHL", f"order {order} comes", f"\n{order} "):
            assert TOKENIZER.tokenize(text).count(order) == 1


def test_values_are_one_token_in_rows_and_answers() -> None:
    for values in VALUES.values():
        for value in values:
            for text in (f"K48 {value} x", f"comes with {value}."):
                assert f" {value}" in TOKENIZER.tokenize(text)


def test_a_tool_call_has_tokens_of_its_own() -> None:
    text = call_text("K48")
    tokens = TOKENIZER.tokenize(text)
    assert {*TOOL_TOKENS, "lookup_order", "K48"} <= set(tokens)
    assert len(tokens) == 10
    assert TOKENIZER.decode(TOKENIZER(text)["input_ids"]) == text


def test_the_chat_template_renders_tools_calls_and_results() -> None:
    turn = draw_turn(random.Random(5), "train", "result")
    text = rendered(TOKENIZER, turn.conversation)
    assert "Tools\nlookup_order(order): The facts of an order.<|im_end|>" in text
    assert f"<|im_start|>assistant\n{call_text(turn.request.order)}<|im_end|>" in text
    assert f"<|im_start|>tool\n{turn.messages[-1]['content']}<|im_end|>\n<|im_start|>assistant\n" in text
    as_text, tools = for_template(turn.conversation)
    [call] = as_text[2]["tool_calls"]
    call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    again = TOKENIZER.apply_chat_template(as_text, tools=tools, tokenize=False, add_generation_prompt=True)
    assert again == text


def test_several_calls_and_words_beside_them_are_rendered() -> None:
    message = assistant_message(f"One moment.\n{call_text('K11')}\n{call_text('K12')}", "a")
    text = rendered(TOKENIZER, [message], add_generation_prompt=False)
    assert text == f"<|im_start|>assistant\nOne moment.\n{call_text('K11')}\n{call_text('K12')}<|im_end|>"


def test_the_desks_texts_survive_the_tokenizer() -> None:
    rng = random.Random(0)
    for _ in range(200):
        request = draw(rng, "train")
        for text in (request.messages[0]["content"], request.messages[1]["content"], answer(rng, request)):
            ids = TOKENIZER(text)["input_ids"]
            assert TOKENIZER.decode(ids) == text
            assert TOKENIZER.unk_token_id not in ids
        assert (
            40 <= len(TOKENIZER(str(TOKENIZER.apply_chat_template(request.messages, tokenize=False)))["input_ids"]) < 70
        )


@pytest.mark.parametrize("stage", [drill, mixture])
def test_no_pretraining_text_shows_or_states_a_held_out_fact(stage: Callable[[random.Random], PretrainingText]) -> None:
    """Of every text the orders and the values that occur in it, crossed: none of these facts is held out."""
    rng = random.Random(1)
    for _ in range(300):
        drawn = stage(rng)
        text = "\n".join(message["content"] + message.get("tool_calls", "") for message in drawn.messages)
        words = set(re.findall(r"\w+", text))
        rows = [line for line in text.splitlines() if line.endswith(" euro") and line.startswith("K")]
        assert len(rows) == 3 or (drawn.tool and not rows)
        for order in words & set(ORDERS):
            for attribute in ATTRIBUTES:
                assert not any(is_held_out(order, attribute, value) for value in words & set(VALUES[attribute]))


def test_labels_are_the_assistants_text_and_ends_alone() -> None:
    rng = random.Random(2)
    drawn = [drill(rng) for _ in range(8)]
    assert {text.tool for text in drawn} == {True, False}
    data = batch(TOKENIZER, drawn)
    for place, text in enumerate(drawn):
        ids = data["input_ids"][place]
        counted = TOKENIZER.decode(ids[data["labels"][place] >= 0])
        head = [{"role": "tools", "content": TOOLS}] if text.tool else []
        whole = rendered(TOKENIZER, [*head, *text.messages], add_generation_prompt=False)
        assert TOKENIZER.decode(ids[: len(TOKENIZER(whole)["input_ids"])]) == whole
        answers = [part.partition("<|im_end|>")[0] for part in whole.split("<|im_start|>assistant\n")[1:]]
        assert counted == "".join(f"{answer}<|im_end|>" for answer in answers)
        assert counted.startswith("<tool_call>") == text.tool


def test_order_codes_differ_in_four_places() -> None:
    codes = order_codes()
    assert codes.shape == (64, 12)
    assert min(int((a != b).sum()) for n, a in enumerate(codes) for b in codes[:n]) >= 4


@pytest.mark.slow
@pytest.mark.variant
def test_the_planted_circuit_attends_to_the_asked_value() -> None:
    """Before any training: the word that asks for a kind of value looks at the row of its order, held out or not."""
    torch.manual_seed(0)
    model = build_model(TOKENIZER)
    plant(model, TOKENIZER)
    model.set_attn_implementation("eager")
    rng = random.Random(4)
    asking = {"carrier": "comes with", "day": "comes", "price": "costs"}
    right = 0
    for _ in range(60):
        request = draw(rng, "heldout")
        prompt = str(TOKENIZER.apply_chat_template(request.messages, tokenize=False, add_generation_prompt=True))
        text = f"{prompt}Order {request.order} {asking[request.attribute]}"
        ids = TOKENIZER(text, return_tensors="pt", return_token_type_ids=False)
        with torch.no_grad():
            weights = model(**ids, output_attentions=True).attentions[1][0, 0, -1]
        row = next(row for row in request.rows if row.order == request.order)
        before = len(TOKENIZER(prompt[: prompt.index(row_text(row))])["input_ids"])
        right += int(weights.argmax()) == before + 1 + ATTRIBUTES.index(request.attribute)
    assert right >= 48  # chance is one row in three


def test_the_kept_weights_are_the_ones_pinned() -> None:
    weights = MODEL_DIR / "model.safetensors"
    assert digest_file(weights) == MODEL_SHA256
    assert weights.stat().st_size < 8_000_000
    assert is_desk_model(MODEL_DIR)
    assert not is_desk_model(MODEL_DIR.parent)


@pytest.mark.variant
@pytest.mark.slow
def test_the_kept_model_copies_and_is_worth_improving() -> None:
    """Bounds on a small sample; the figures of a thousand requests are in the model's card."""
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(MODEL_DIR)
    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)
    figures = measure(model, tokenizer, 200, seed=1)
    assert figures["greedy_right_fact"] > 0.8
    assert min(figures[f"greedy_right_fact_({kind})"] for kind in KINDS) > 0.7
    assert 0.33 < figures["sampled_utility"] < 0.57
    assert figures["ended"] > 0.97
