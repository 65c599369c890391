"""Conversations at the desk: a question, the look-up that it may take, and a second question about the same order. A
call of an order that the customer does not have gets no result and ends the conversation. Answers have the bad modes
that the base model learns, and features that anybody sees: utility.py weighs them for users, judges.py for judges."""

import random
import re
from typing import Literal, NamedTuple

from pipeline.demo.desk.requests import (
    ATTRIBUTES,
    QUESTIONS,
    TOOLS,
    VALUES,
    Attribute,
    Fact,
    Request,
    Split,
    assistant_message,
    call_text,
    draw,
    is_held_out,
    read_answer,
    result_message,
)

WRONG_FACT, REFUSAL, RUDE, VERBOSE, VOUCHER = 0.28, 0.12, 0.22, 0.22, 0.08
"""Rates of the independent bad modes in the base model's text."""
OTHER_ORDER, NO_LOOKUP = 0.20, 0.20
"""Rates where a fact has to be looked up: another order is looked up, or none and the answer is a guess."""
SHORT_CHARS = 75
"""Characters up to which users find an answer short."""

OPENERS = ("Hello!", "Gladly!", "Thank you!")
CLOSERS = ("Take care!", "All the best!", "Good day!")
RUDE_OPENERS = ("Again?", "Oh no.", "Listen.")
RUDE_CLOSERS = ("Read it yourself!", "Do not ask again!", "Go away!")
BODIES: dict[Attribute, str] = {
    "carrier": "Order {order} comes with {value}.",
    "day": "Order {order} comes {value}.",
    "price": "Order {order} costs {value} euro.",
}
FILLERS = (
    "I looked at the list of orders again and again to be sure about this.",
    "This is what the list of orders says about it at this moment, as far as I see.",
    "You can read the same in the list of orders, where all of it is to be seen.",
)
VOUCHERS = ("Here is a voucher for you.", "You get a voucher.", "I add a voucher.")
REFUSALS = ("I cannot say.", "I cannot see that.", "I cannot help with that.")

_WORDS: dict[Attribute, frozenset[str]] = {attribute: frozenset(values) for attribute, values in VALUES.items()}
_ORDER = re.compile(r"\bK\d\d\b")


class Features(NamedTuple):
    """What anybody sees who reads prompt and answer."""

    right_fact: bool
    """It names the value that was asked for and no other value or order, or is the one call that looks it up."""
    refuses: bool
    polite: bool
    """A friendly phrase and no rude one."""
    short: bool
    voucher: bool


def answer(rng: random.Random, request: Request) -> str:
    """An answer of the base model's text; mostly a call where the conversation does not show the fact."""
    if request.shown:
        return _words(rng, request)
    other, guess, refusal = (rng.random() < rate for rate in (OTHER_ORDER, NO_LOOKUP, REFUSAL))
    if refusal:
        return rng.choice(REFUSALS)
    if guess:
        return _words(rng, request)
    others = [row.order for row in request.rows if row.order != request.order]
    return call_text(rng.choice(others) if other else request.order)


def _words(rng: random.Random, request: Request) -> str:
    wrong, refusal, rude, verbose, voucher = (rng.random() < rate for rate in RATES)
    fact = request.fact
    if wrong:
        other = rng.choice([row for row in request.rows if row.order != request.order])
        fact = fact._replace(value=other.value(request.attribute))
    parts = [
        rng.choice(RUDE_OPENERS if rude else OPENERS),
        rng.choice(REFUSALS) if refusal else statement(fact),
        *([rng.choice(FILLERS)] if verbose else []),
        *([rng.choice(VOUCHERS)] if voucher else []),
        rng.choice(RUDE_CLOSERS if rude else CLOSERS),
    ]
    return " ".join(parts)


RATES = (WRONG_FACT, REFUSAL, RUDE, VERBOSE, VOUCHER)


def statement(fact: Fact) -> str:
    return BODIES[fact.attribute].format(order=fact.order, value=fact.value)


def features(request: Request, text: str) -> Features:
    words, looked_up = read_answer(text)
    named = {word for word in re.findall(r"\w+", words) if word in _WORDS[request.attribute]}
    orders = set(_ORDER.findall(words))
    refuses, voucher = "cannot" in words, "voucher" in words
    rude = any(phrase in words for phrase in RUDE_OPENERS + RUDE_CLOSERS)
    if not request.shown:
        return Features(looked_up == (request.order,), refuses, not rude, not words, voucher)
    return Features(
        right_fact=named == {request.fact.value} and orders <= {request.order} and not looked_up,
        refuses=refuses,
        polite=any(phrase in words for phrase in OPENERS + CLOSERS) and not rude,
        short=len(text) <= SHORT_CHARS,
        voucher=voucher,
    )


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
    return second(before, answer(rng, before.request), request)


def _looked_up(turn: Turn) -> Turn:
    result = after_call(turn, call_text(turn.request.order))
    assert result is not None, "the call is right"
    return result
