"""Conversations at the desk: a question, the look-up that it may take, and a second question about the same order. A
call of an order that the customer does not have gets no result and ends the conversation."""

import random
from typing import Literal, NamedTuple

from pipeline.demo.desk import answers
from pipeline.demo.desk.requests import ATTRIBUTES, QUESTIONS, Attribute, Request, Split, draw, is_held_out
from pipeline.demo.desk.tool import TOOLS, assistant_message, read_answer, result_message

Kind = Literal["facts", "call", "result", "second"]
KINDS: tuple[Kind, ...] = ("facts", "call", "result", "second")
WITH_TOOL, SECOND = 0.35, 0.3
"""Share of the conversations in which facts have to be looked up, and of the answers that a second question follows."""

LOOKUP = "lookup"
"""Stands for the value where a question is split that has to be looked up."""


class Turn(NamedTuple):
    request: Request
    kind: Kind
    """Facts are shown with the question, have to be looked up, or were looked up; or it is a second question."""
    messages: list[dict[str, str]]
    """Calls as JSON text under `tool_calls`."""
    tool: bool
    """The request carries the tool's definition."""

    @property
    def tools(self) -> str | None:
        return TOOLS if self.tool else None

    @property
    def conversation(self) -> list[dict[str, str]]:
        """The messages with the definitions before them."""
        return [*([{"role": "tools", "content": TOOLS}] if self.tool else []), *self.messages]


def first(request: Request, tool: bool) -> Turn:
    """`tool`: the rows are not shown, but can be looked up."""
    request = request._replace(shown=not tool)
    return Turn(request, "call" if tool else "facts", request.messages, tool)


def after_call(turn: Turn, text: str) -> Turn | None:
    """The turn after the client has run the answer's call; None where it is no call, or finds no order."""
    words, orders = read_answer(text)
    if turn.kind != "call" or words or orders != (turn.request.order,):
        return None
    id = f"call_{len(turn.messages)}"
    rows, order = turn.request.rows, turn.request.order
    messages = [*turn.messages, assistant_message(text, id), result_message(rows, order, id)]
    return Turn(turn.request._replace(shown=True), "result", messages, turn.tool)


def second(turn: Turn, text: str, request: Request) -> Turn:
    messages = [
        *turn.messages,
        {"role": "assistant", "content": text},
        {"role": "user", "content": request.question},
    ]
    return Turn(request, "second", messages, turn.tool)


def another(rng: random.Random, request: Request) -> Request:
    attribute: Attribute = rng.choice([each for each in ATTRIBUTES if each != request.attribute])
    return request._replace(attribute=attribute, wording=rng.randrange(len(QUESTIONS[attribute])))


def is_reserved(request: Request) -> bool:
    """Whether only the suite asks this question, whose facts have to be looked up."""
    return is_held_out(request.order, request.attribute, LOOKUP)


def begin(rng: random.Random, split: Split, tool: bool) -> Turn:
    """The first turn of a conversation. `heldout`: about a held-out fact, and with a tool also a reserved question."""
    while True:
        request = draw(rng, split)
        if not tool or is_reserved(request) == (split == "heldout"):
            return first(request, tool)


def draw_turn(rng: random.Random, split: Split, kind: Kind) -> Turn:
    """A turn of this kind. `heldout`: about a held-out fact. Earlier answers are drawn from the base model's text; the
    call before a result is right."""
    if kind in ("facts", "call"):
        return begin(rng, split, tool=kind == "call")
    request = draw(rng, split)
    if kind == "result":
        return _looked_up(first(request, tool=True))
    before = first(another(rng, request), tool=rng.random() < WITH_TOOL)
    before = _looked_up(before) if before.tool else before
    return second(before, answers.answer(rng, before.request), request)


def _looked_up(turn: Turn) -> Turn:
    result = after_call(turn, answers.call_text(turn.request.order))
    assert result is not None, "the call is right"
    return result
