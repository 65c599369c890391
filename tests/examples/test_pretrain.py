"""The programs that made the embedded models: the same model again, and no held-out fact in their texts."""

import random
import re
from collections.abc import Callable

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from examples.pretrain import arithmetic, desk
from pipeline.demo import MODEL_DIR
from pipeline.demo.desk import MODEL_DIR as DESK_DIR
from pipeline.demo.desk.conversation import KINDS
from pipeline.demo.desk.requests import ATTRIBUTES, ORDERS, VALUES, is_held_out
from pipeline.demo.task import problems

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)  # a second one is many times slower on a busy machine


@pytest.mark.parametrize("made", [arithmetic.build_tokenizer, desk.build_tokenizer])
def test_the_kept_tokenizers_are_those_that_are_made(made: Callable[[], PreTrainedTokenizerFast]) -> None:
    tokenizer = made()
    kept = AutoTokenizer.from_pretrained(MODEL_DIR if made is arithmetic.build_tokenizer else DESK_DIR)
    assert (kept.get_vocab(), kept.chat_template) == (tokenizer.get_vocab(), tokenizer.chat_template)


def test_the_same_seed_makes_the_same_model() -> None:
    first, second, other = (arithmetic.make(steps=2, seed=seed)[0].state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_a_stage_of_the_desk_trains() -> None:
    model, tokenizer = desk.make(stages=(desk.Stage("drill", desk.drill, 2, 3e-3),))
    assert len(tokenizer) == model.config.vocab_size


@pytest.mark.parametrize("stage", [desk.drill, desk.mixture])
def test_no_pretraining_text_has_a_held_out_fact(stage: Callable[[random.Random], desk.PretrainingText]) -> None:
    """Of every text the orders and the values that occur in it, crossed: none of these facts is held out."""
    rng = random.Random(1)
    for _ in range(300):
        text = "\n".join(message["content"] + message.get("tool_calls", "") for message in stage(rng).messages)
        words = set(re.findall(r"\w+", text))
        for order in words & set(ORDERS):
            for attribute in ATTRIBUTES:
                assert not any(is_held_out(order, attribute, value) for value in words & set(VALUES[attribute]))


@pytest.mark.variant
def test_the_kept_models_are_as_wrong_as_designed() -> None:
    """Bounds on small samples; the figures of a thousand requests to the desk are in its model's card."""
    torch.manual_seed(0)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(MODEL_DIR), AutoTokenizer.from_pretrained(MODEL_DIR)
    assert 0.395 < arithmetic.accuracy(model, tokenizer, problems(99, "heldout", 2000)) < 0.475
    model, tokenizer = AutoModelForCausalLM.from_pretrained(DESK_DIR), AutoTokenizer.from_pretrained(DESK_DIR)
    figures = desk.measure(model, tokenizer, 200, seed=1)
    assert figures["greedy_right_fact"] > 0.8
    assert min(figures[f"greedy_right_fact_({kind})"] for kind in KINDS) > 0.7
    assert 0.33 < figures["sampled_utility"] < 0.57
    assert figures["ended"] > 0.97
