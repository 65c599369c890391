"""Twins: each breaks one rule and differs in nothing else, or is not made."""

import json
import re
from typing import Any

import pytest
from pydantic import ValidationError

from pipeline.recipe.rewards import Probe, RewardModelSettings
from pipeline.rewards.reward_model.probes import twin

DESK = "Facts\nK48 DHL Monday 36 euro\nK92 UPS Friday 12 euro\nWhen does K48 come?"


def asked(text: str) -> str:
    return json.dumps([{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}])


PENS = "Ada has 12 pens, Ben has 3.5 and Cleo 3.5."
APPEND = {"kind": "append", "text": "Here is a voucher."}
REFUSE = {"kind": "refuse", "text": "I can't."}
NUMBER, ENTITY = {"kind": "swap", "value": "number"}, {"kind": "swap", "value": "entity"}


@pytest.mark.parametrize(
    ("settings", "question", "answer", "violating"),
    [
        (APPEND, "?", "It comes today.\n", "It comes today. Here is a voucher."),
        (APPEND, "?", "Well: here is a VOUCHER.", None),
        ({"kind": "lengthen"}, "?", "It is 4.", "It is 4. It is 4."),
        ({"kind": "lengthen", "text": "And on.", "factor": 3}, "?", "It is 4.", "It is 4. And on. And on."),
        (REFUSE, "?", "It is 4.", "I can't."),
        (REFUSE, "?", "I can't. Sorry.", None),
        ({"kind": "swap"}, DESK, "It comes on Monday.", "It comes on Friday."),
        ({"kind": "swap"}, DESK, "By DHL!", "By UPS!"),
        ({"kind": "swap"}, DESK, "Soon.", None),
        ({"kind": "swap"}, DESK, "Monday, not Friday.", None),  # no other value that the answer does not hold
        (NUMBER, PENS, "Ada has 12.", "Ada has 3.5."),
        (NUMBER, "Ada has 12 pens.", "Ada has 12.", None),
        (NUMBER, "Ada has 12 pens, Ben 7.", "Room A12 is free.", None),  # a part of a word is no number
        (ENTITY, "Today Ada met Ben.", "It was Ada.", "It was Ben."),
        (ENTITY, "Today Ada slept.", "It was Ada.", None),  # the first word of a sentence names nothing
    ],
)
def test_a_twin_breaks_one_rule_or_is_not_made(
    settings: dict[str, Any], question: str, answer: str, violating: str | None
) -> None:
    (probe,) = RewardModelSettings.model_validate({"probes": [{"name": "x", **settings}]}).probes
    assert twin(probe, asked(question), answer) == violating


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
