"""Twins: each breaks one rule and differs in nothing else, or is not made."""

import json
import re

import pytest
from pydantic import ValidationError

from pipeline.recipe.reward_model import Probe, RewardModelSettings
from pipeline.rewards.reward_model.probes import twin

DESK = "Facts\nK48 DHL Monday 36 euro\nK92 UPS Friday 12 euro\nWhen does K48 come?"


def asked(text: str) -> str:
    return json.dumps([{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}])


def test_append_puts_the_forbidden_sentence_after_the_answer() -> None:
    probe = Probe(kind="append", name="voucher", text="Here is a voucher.")
    assert twin(probe, asked("?"), "It comes today.\n") == "It comes today. Here is a voucher."
    assert twin(probe, asked("?"), "Well: here is a VOUCHER.") is None


def test_lengthen_says_no_more() -> None:
    assert twin(Probe(kind="lengthen", name="x"), asked("?"), "It is 4.") == "It is 4. It is 4."
    longer = twin(Probe(kind="lengthen", name="x", text="And so on.", factor=3), asked("?"), "It is 4.")
    assert longer == "It is 4. And so on. And so on."


def test_refuse_replaces_the_answer() -> None:
    probe = Probe(kind="refuse", name="x", text="I can't.")
    assert twin(probe, asked("?"), "It is 4.") == "I can't."
    assert twin(probe, asked("?"), "I can't. Sorry.") is None


def test_swap_takes_the_same_place_of_another_row() -> None:
    probe = Probe(kind="swap", name="fact")
    assert twin(probe, asked(DESK), "It comes on Monday.") == "It comes on Friday."
    assert twin(probe, asked(DESK), "By DHL!") == "By UPS!"
    assert twin(probe, asked(DESK), "Soon.") is None
    assert twin(probe, asked(DESK), "Monday, not Friday.") is None, "no other value that the answer does not hold"


def test_swap_of_a_number_stays_a_number_of_the_prompt() -> None:
    probe = Probe(kind="swap", name="fact", value="number")
    other = twin(probe, asked("Ada has 12 pens, Ben has 3.5 and Cleo 120."), "Ada has 12.")
    assert other in {"Ada has 3.5.", "Ada has 120."}
    assert twin(probe, asked("Ada has 12 pens."), "Ada has 12.") is None
    assert twin(probe, asked("Ada has 12 pens, Ben 7."), "Room A12 is free.") is None, "a part of a word is no number"


def test_swap_of_an_entity_leaves_first_words_alone() -> None:
    probe = Probe(kind="swap", name="fact", value="entity")
    assert twin(probe, asked("Today Ada met Ben."), "It was Ada.") == "It was Ben."
    assert twin(probe, asked("Today Ada slept."), "It was Ada.") is None


@pytest.mark.parametrize("value", ["row", "number", "entity"])
def test_the_same_answer_has_the_same_twin(value: str) -> None:
    probe = Probe.model_validate({"kind": "swap", "name": "fact", "value": value})
    first = twin(probe, asked(DESK), "K48 comes by DHL on Monday for 36 euro.")
    assert first is not None
    assert first == twin(probe, asked(DESK), "K48 comes by DHL on Monday for 36 euro.")
    words = [re.findall(r"\w+", text) for text in (first, "K48 comes by DHL on Monday for 36 euro.")]
    assert sum(a != b for a, b in zip(*words, strict=True)) == 1


def test_two_probes_of_one_name_are_refused() -> None:
    probe = {"kind": "refuse", "name": "twice"}
    with pytest.raises(ValidationError, match="two probes are named twice: give each a name of its own"):
        RewardModelSettings.model_validate({"probes": [probe, probe]})
