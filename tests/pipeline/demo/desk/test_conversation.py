"""Conversations at the desk: what the client sends after a call, and second questions."""

import json
import random

import pytest

from pipeline.demo.desk.conversation import KINDS, LOOKUP, Kind, after_call, begin, draw_turn, first
from pipeline.demo.desk.requests import TOOLS, call_text, draw, is_held_out

REQUEST = draw(random.Random(0), "train")


def test_the_clients_result_has_the_row_that_was_called_for() -> None:
    turn = first(REQUEST, tool=True)
    assert (turn.tools, len(turn.messages)) == (TOOLS, 2)
    result = after_call(turn, call_text(REQUEST.order))
    assert result is not None
    call, answer = result.messages[-2:]
    [decoded] = json.loads(call["tool_calls"])
    assert json.loads(decoded["function"]["arguments"]) == {"order": REQUEST.order}
    assert (answer["role"], answer["tool_call_id"]) == ("tool", decoded["id"])
    assert sorted(answer["content"].splitlines()) == sorted(REQUEST.contexts)
    assert answer["content"].splitlines()[-1].startswith(REQUEST.order)


@pytest.mark.parametrize("kind", KINDS)
def test_a_held_out_turn_asks_for_a_held_out_fact(kind: Kind) -> None:
    rng = random.Random(2)
    for _ in range(200):
        turn = draw_turn(rng, "heldout", kind)
        assert turn.kind == kind
        assert is_held_out(*turn.request.fact)
        assert kind != "call" or is_held_out(turn.request.order, turn.request.attribute, LOOKUP)
        assert turn.request.shown == (kind != "call")


def test_no_training_look_up_is_a_held_out_one() -> None:
    rng = random.Random(3)
    asked = {turn.request[2:4] for turn in [begin(rng, "train", tool=True) for _ in range(2000)]}
    assert len(asked) > 140
    assert not any(is_held_out(order, attribute, LOOKUP) for order, attribute in asked)
