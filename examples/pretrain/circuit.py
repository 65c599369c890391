"""The weights that the desk's model begins with: a lookup circuit, where random ones would take long to find one.

A model of this size learns to look a value up by order and kind only after a long plateau, most of its pretraining. So
the circuit is written into the weights before the first step, and the pretraining teaches the rest: language, modes,
and when to use it. Planted are three heads. Gather (layer 1): every position attends to the nearest order number
before it and writes that order's code beside its own. Repeat (layer 1): before an order number is due, the nearest one
is copied. Look up (layer 2): a position that asks for a kind of value attends to the value of that kind and of the
same order, and copies it; every other position attends to the start of the text. All weights stay trainable.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from pipeline.demo.desk.requests import ATTRIBUTES, ORDERS, VALUES, Attribute

CONST, IS_ORDER, IS_SPACE, IS_START = 0, 1, 64, 65
KIND: dict[Attribute, int] = {"carrier": 2, "day": 3, "price": 4}
"""Of a value: its kind."""
ASKS: dict[Attribute, int] = {"carrier": 5, "day": 6, "price": 7}
"""Of a word of an answer: the kind of value that comes next."""
ASKING: dict[Attribute, str] = {"carrier": " with", "day": " comes", "price": " costs"}
ORDER_CODE, GATHERED, TOKEN_CODE = slice(8, 20), slice(20, 32), slice(32, 64)
"""Where an embedding has its order's code, where the nearest order's is written, and where each token has its own."""
FLAG, CODE, TOKEN = 0.3, 0.1, 0.12

NEAR = (2, 3, 4)
"""Dimensions of a head whose rotary frequencies fall with distance, within some 15 tokens."""
FAR = (*range(8, 16), *range(24, 32))
"""Dimensions that hardly rotate within a conversation: content is compared here."""
NULL = (7, 23)
SHARPNESS = 20.0
"""Logit of a perfect match."""
HEAD = 32


def plant(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write the circuit into an untrained model of 96 hidden units and heads of 32."""
    with torch.no_grad():
        _embed(model.model.embed_tokens.weight, tokenizer)
        layers: Any = model.model.layers
        first, second = layers[0].self_attn, layers[1].self_attn
        for attention in (first, second):
            attention.o_proj.weight *= 0.5
            for norm in (attention.q_norm, attention.k_norm):
                norm.weight.fill_((SHARPNESS / HEAD**0.5) ** 0.5)
        _gather(first)
        _repeat(first)
        _look_up(second)


def order_codes() -> Tensor:
    """A code of twelve signs for each order number, any two of them differing in at least four places."""
    chosen: list[tuple[int, ...]] = []
    for signs in product((1, -1), repeat=12):
        if all(sum(a != b for a, b in zip(signs, other, strict=True)) >= 4 for other in chosen):
            chosen.append(signs)
    return torch.tensor(chosen[: len(ORDERS)], dtype=torch.float32)


def _embed(weight: Tensor, tokenizer: PreTrainedTokenizerFast) -> None:
    ids = tokenizer.get_vocab()
    weight[:, :64] = 0
    weight[:, CONST] = FLAG
    weight[:, TOKEN_CODE] = torch.randn(len(weight), 32) * TOKEN
    for order, code in zip(ORDERS, order_codes(), strict=True):
        weight[ids[order], IS_ORDER] = FLAG
        weight[ids[order], ORDER_CODE] = code * CODE
    for attribute in ATTRIBUTES:
        weight[ids[ASKING[attribute]], ASKS[attribute]] = FLAG
        for value in VALUES[attribute]:
            weight[ids[f" {value}"], KIND[attribute]] = FLAG
    for before_order in (" ", '{"order": "'):
        weight[ids[before_order], IS_SPACE] = FLAG
    weight[ids["<|im_start|>"], IS_START] = FLAG
    weight[ids["<|im_start|>"], TOKEN_CODE] = 0  # who looks nothing up copies nothing


class _PlantedHead:
    """The weights of one head, cleared."""

    def __init__(self, attention: Any, number: int) -> None:
        rows = slice(number * HEAD, (number + 1) * HEAD)
        projections = (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
        weights: list[Tensor] = [projection.weight for projection in projections]
        self.query, self.key, self.value = (weight[rows] for weight in weights[:3])
        self.output = weights[3][:, rows]
        for weight in (self.query, self.key, self.value, self.output):
            weight.zero_()


def _gather(attention: Any) -> None:
    head = _PlantedHead(attention, 0)
    for dimension in NEAR:
        head.query[dimension, CONST] = 1.0
        head.key[dimension, IS_ORDER] = 4.0
    head.key[FAR[-1], CONST] = 1.0
    for place in range(12):
        head.value[place, ORDER_CODE.start + place] = 1.0
        head.output[GATHERED.start + place, place] = 0.1


def _repeat(attention: Any) -> None:
    head = _PlantedHead(attention, 1)
    for dimension in NEAR:
        head.query[dimension, IS_SPACE] = 4.0
        head.key[dimension, IS_ORDER] = 4.0
    head.query[FAR[0], CONST] = 1.0
    head.key[FAR[0], IS_START] = 4.0
    head.key[NULL[0], CONST] = 1.0
    _copy(head)


def _look_up(attention: Any) -> None:
    head = _PlantedHead(attention, 0)
    *code, carrier, day, price, start = FAR
    order_norm = 12**0.5 * 0.13
    for dimension, attribute in zip((carrier, day, price), ATTRIBUTES, strict=True):
        head.query[dimension, ASKS[attribute]] = 4 / FLAG
        head.key[dimension, KIND[attribute]] = 1 / FLAG
        head.key[NULL[0], KIND[attribute]] = -1.5 / FLAG
    for place, dimension in enumerate(code):
        head.query[dimension, GATHERED.start + place] = 3 / order_norm
        head.key[dimension, GATHERED.start + place] = 1 / order_norm
    head.query[start, CONST] = 3 / FLAG
    head.key[start, IS_START] = 3 / FLAG
    head.key[NULL[0], CONST] = 1.5 / FLAG
    head.key[NULL[0], IS_START] = -1.5 / FLAG
    _copy(head)


def _copy(head: _PlantedHead) -> None:
    for place in range(HEAD):
        head.value[place, TOKEN_CODE.start + place] = 1.0
        head.output[TOKEN_CODE.start + place, place] = 0.6
