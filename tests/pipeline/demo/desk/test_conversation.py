"""Conversations at the desk: what the client sends after a call, and second questions."""

import json
import random

from pipeline.demo.desk.conversation import after_call, first
from pipeline.demo.desk.requests import TOOLS, call_text, draw

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
