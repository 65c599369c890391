"""The desk's requests: what they ask, how they are read back, and a split that lets nothing through."""

import random
import re

import pytest

from pipeline.demo.desk.conversation import KINDS, Kind, answer, draw_turn
from pipeline.demo.desk.requests import VALUES, draw, is_held_out, read_request
from pipeline.demo.desk.requests import Split as Part

WORDS = {value: attribute for attribute, values in VALUES.items() for value in values}


def test_a_request_is_read_back_from_its_text() -> None:
    rng = random.Random(0)
    parts: tuple[Part, ...] = ("train", "heldout")
    for request in [draw(rng, part) for part in parts for _ in range(200)]:
        assert read_request(request.messages) == request
        messages = request.messages
        messages[-1]["content"] += " Write to alice.5@example.com."
        assert read_request(messages) == request


@pytest.mark.parametrize("kind", KINDS)
def test_a_turn_of_a_conversation_is_read_back(kind: Kind) -> None:
    rng = random.Random(6)
    for turn in [draw_turn(rng, "train", kind) for _ in range(100)]:
        read, request = read_request(turn.messages), turn.request
        assert read is not None
        assert (read.order, read.attribute, read.wording) == (request.order, request.attribute, request.wording)
        assert (read.shown, read.shop) == (kind != "call", request.shop)
        assert sorted(read.rows) == sorted(request.rows if read.shown else ())


def test_a_mistaken_answer_states_no_held_out_fact() -> None:
    """The leak: the value of another row, said of the order that was asked for, may be a held-out fact."""
    rng = random.Random(2)
    mistaken = 0
    for _ in range(2000):
        request = draw(rng, "train")
        text = answer(rng, request)
        for value in [word for word in re.findall(r"\w+", text) if WORDS.get(word) == request.attribute]:
            mistaken += value != request.fact.value
            assert not is_held_out(request.order, request.attribute, value)
    assert mistaken > 300
