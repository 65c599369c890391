"""The desk's model: its tokenizer, what is planted into it, and what the kept weights can do."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pipeline.demo.desk import MODEL_DIR, MODEL_SHA256, is_desk_model
from pipeline.demo.desk.answers import answer
from pipeline.demo.desk.circuit import order_codes, plant
from pipeline.demo.desk.pretrain import (
    Messages,
    batch,
    build_model,
    build_tokenizer,
    drill,
    measure,
    mixture,
)
from pipeline.demo.desk.requests import ATTRIBUTES, ORDERS, VALUES, draw, is_held_out, row_text
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
    text = '<tool_call>{"name": "lookup", "arguments": {"order": "K48"}}</tool_call>'
    tokens = TOKENIZER.tokenize(text)
    assert {"<tool_call>", "</tool_call>", '{"', '": "', '"}', "K48"} <= set(tokens)
    assert TOKENIZER.decode(TOKENIZER(text)["input_ids"]) == text


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
def test_no_pretraining_text_shows_or_states_a_held_out_fact(stage: Callable[[random.Random], Messages]) -> None:
    """Of every text the orders and the values that occur in it, crossed: none of these facts is held out."""
    rng = random.Random(1)
    for _ in range(300):
        text = "\n".join(message["content"] for message in stage(rng))
        words = set(text.replace(".", " ").replace("?", " ").split())
        rows = [line for line in text.splitlines() if line.endswith(" euro") and line.startswith("K")]
        assert len(rows) == 3
        for order in words & set(ORDERS):
            for attribute in ATTRIBUTES:
                assert not any(is_held_out(order, attribute, value) for value in words & set(VALUES[attribute]))


def test_labels_are_the_assistants_text_and_ends_alone() -> None:
    messages = mixture(random.Random(2))
    data = batch(TOKENIZER, [messages, drill(random.Random(3))])
    counted = data["labels"][0][data["labels"][0] >= 0]
    assert TOKENIZER.decode(counted) == "".join(
        m["content"] + "<|im_end|>" for m in messages if m["role"] == "assistant"
    )
    whole = str(TOKENIZER.apply_chat_template(messages, tokenize=False))
    assert TOKENIZER.decode(data["input_ids"][0][: len(TOKENIZER(whole)["input_ids"])]) == whole


def test_order_codes_differ_in_four_places() -> None:
    codes = order_codes()
    assert codes.shape == (64, 12)
    assert min(int((a != b).sum()) for n, a in enumerate(codes) for b in codes[:n]) >= 4


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


@pytest.mark.slow
def test_the_kept_model_copies_and_is_worth_improving() -> None:
    """Bounds on a small sample; the figures of a thousand requests are in the model's card."""
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(MODEL_DIR)
    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)
    figures = measure(model, tokenizer, 200, seed=1)
    assert figures["greedy_right_fact"] > 0.8
    assert 0.33 < figures["sampled_utility"] < 0.57
    assert figures["ended"] > 0.97
