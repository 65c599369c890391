"""Answers at the desk: their phrases, the bad modes that the base model learns, and the features that anybody sees in
an answer. utility.py weighs them for users, judges.py for judges."""

import random
import re
from typing import NamedTuple

from pipeline.demo.desk.requests import VALUES, Attribute, Fact, Request
from pipeline.demo.desk.tool import call_text, read_answer

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
