"""Requests at the desk: a shop's system prompt, rows of facts about orders, and a question about one fact; and the tool
that looks an order up: its definition, its calls as messages and as text, and its results. The split is by fact; no
training request shows a held-out fact, or an order with a value that would make one."""

import hashlib
import json
import random
import re
from functools import cache
from typing import Any, Literal, NamedTuple

Split = Literal["train", "heldout"]
Attribute = Literal["carrier", "day", "price"]

HELD_OUT_EVERY = 6
"""One fact in this many is held out."""
ROWS = 3

ORDERS = tuple(f"K{number}" for number in range(10, 74))
VALUES: dict[Attribute, tuple[str, ...]] = {
    "carrier": ("DHL", "UPS", "DPD", "GLS", "Hermes", "FedEx"),
    "day": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday", "today", "tomorrow"),
    "price": tuple(str(price) for price in range(20, 50)),
}
ATTRIBUTES: tuple[Attribute, ...] = ("carrier", "day", "price")
SHOPS = {"Bluefin": "calm", "Marigold": "warm", "Nordwind": "formal", "Oakleaf": "cheerful"}
"""Each shop and the tone of its system prompt."""
SYSTEM = "You answer for the shop {shop}. Keep a {tone} tone. No voucher."
QUESTIONS: dict[Attribute, tuple[str, ...]] = {
    "carrier": ("Who brings order {order}?", "Which carrier has order {order}?", "With whom does order {order} come?"),
    "day": ("When does order {order} come?", "Which day is it for order {order}?", "When is order {order} here?"),
    "price": ("What does order {order} cost?", "How much is order {order}?", "What is to pay for order {order}?"),
}
_ORDER = re.compile(r"\bK\d\d\b")
_ROW = re.compile(r"^(K\d\d) (\w+) (\w+) (\d\d) euro$", re.MULTILINE)

NAME = "lookup_order"
DEFINITION: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "The facts of an order.",
        "parameters": {
            "type": "object",
            "properties": {"order": {"type": "string", "description": "Its number."}},
            "required": ["order"],
        },
    },
}
TOOLS = json.dumps([DEFINITION])

_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>|^call: (\w+)\((\{.*\})\)$", re.DOTALL | re.MULTILINE)


class Fact(NamedTuple):
    order: str
    attribute: Attribute
    value: str


class Row(NamedTuple):
    order: str
    carrier: str
    day: str
    price: str

    def value(self, attribute: Attribute) -> str:
        return {"carrier": self.carrier, "day": self.day, "price": self.price}[attribute]


class Request(NamedTuple):
    shop: str
    rows: tuple[Row, ...]
    """Empty as read from a conversation that does not show them."""
    order: str
    attribute: Attribute
    wording: int
    shown: bool = True
    """Whether the conversation has the rows; else the right answer is to look the order up."""

    @property
    def fact(self) -> Fact:
        row = next(row for row in self.rows if row.order == self.order)
        return Fact(self.order, self.attribute, row.value(self.attribute))

    @property
    def question(self) -> str:
        return QUESTIONS[self.attribute][self.wording].format(order=self.order)

    @property
    def contexts(self) -> list[str]:
        return [row_text(row) for row in self.rows]

    @property
    def messages(self) -> list[dict[str, str]]:
        facts = "".join(f"{row}\n" for row in ("Facts", *self.contexts)) if self.shown else ""
        return [
            {"role": "system", "content": SYSTEM.format(shop=self.shop, tone=SHOPS[self.shop])},
            {"role": "user", "content": f"{facts}{self.question}"},
        ]


def row_text(row: Row) -> str:
    return f"{row.order} {row.carrier} {row.day} {row.price} euro"


@cache
def is_held_out(order: str, attribute: Attribute, value: str) -> bool:
    """Whether the fact is held out, by hash."""
    key = f"{order}/{attribute}/{value}".encode()
    return int.from_bytes(hashlib.sha256(key).digest()) % HELD_OUT_EVERY == 0


def draw(rng: random.Random, split: Split, rows: int = ROWS) -> Request:
    table = training_rows(rng, rows) if split == "train" else _held_out_rows(rng, rows)
    return ask(rng, table, held_out=split == "heldout")


def ask(rng: random.Random, rows: tuple[Row, ...], held_out: bool = False) -> Request:
    """A question about one fact of these rows; `held_out`: about one that is."""
    facts = [Fact(row.order, attribute, row.value(attribute)) for row in rows for attribute in ATTRIBUTES]
    if held_out:
        facts = [fact for fact in facts if is_held_out(*fact)]
    order, attribute, _ = rng.choice(facts)
    return Request(rng.choice(list(SHOPS)), rows, order, attribute, rng.randrange(len(QUESTIONS[attribute])))


def training_rows(rng: random.Random, rows: int) -> tuple[Row, ...]:
    """Rows in which no order makes a held-out fact with any value. No value occurs twice."""
    while True:
        orders = rng.sample(ORDERS, rows)
        allowed = [
            [value for value in VALUES[a] if not any(is_held_out(order, a, value) for order in orders)]
            for a in ATTRIBUTES
        ]
        if all(len(values) >= rows for values in allowed):
            columns = [rng.sample(values, rows) for values in allowed]
            return tuple(Row(*cells) for cells in zip(orders, *columns, strict=True))


def _held_out_rows(rng: random.Random, rows: int) -> tuple[Row, ...]:
    while True:
        columns = [rng.sample(VALUES[attribute], rows) for attribute in ATTRIBUTES]
        table = tuple(Row(*cells) for cells in zip(rng.sample(ORDERS, rows), *columns, strict=True))
        if any(is_held_out(row.order, a, row.value(a)) for row in table for a in ATTRIBUTES):
            return table


def read_request(messages: list[dict[str, str]]) -> Request | None:
    """The last request of a conversation that ends with a question or a look-up's result, from its text; else None."""
    if not messages or messages[-1].get("role") not in ("user", "tool"):
        return None
    shown = "\n".join(m["content"] for m in messages if m.get("role") in ("user", "tool"))
    rows = tuple(dict.fromkeys(Row(*cells) for cells in _ROW.findall(shown)))
    asked = next((m["content"] for m in reversed(messages) if m.get("role") == "user"), "")
    question = asked.rpartition("\n")[2]
    system = next((m["content"] for m in messages if m.get("role") == "system"), "")
    shop = next((name for name in SHOPS if f" {name}." in system), "")
    orders = _ORDER.findall(question)
    for attribute, wordings in QUESTIONS.items():
        for wording, form in enumerate(wordings):
            if orders and question.startswith(form.format(order=orders[0])):
                known = any(row.order == orders[0] for row in rows)
                return Request(shop, rows if known else (), orders[0], attribute, wording, known)
    return None


class ReadAnswer(NamedTuple):
    words: str
    orders: tuple[str | None, ...]
    """Of each call; None for one that the tool does not take."""


def call_text(order: str) -> str:
    return f'<tool_call>\n{{"name": "{NAME}", "arguments": {{"order": "{order}"}}}}\n</tool_call>'


def call_json(order: str) -> str:
    return json.dumps([{"name": NAME, "arguments": {"order": order}}])


def assistant_message(text: str, id: str) -> dict[str, str]:
    """An answer as a message: its calls as JSON text, where the tool takes all of them."""
    words, orders = read_answer(text)
    if not orders or None in orders:
        return {"role": "assistant", "content": text}
    functions = [{"name": NAME, "arguments": json.dumps({"order": order})} for order in orders]
    calls = [{"id": f"{id}_{n}" if n else id, "type": "function", "function": each} for n, each in enumerate(functions)]
    return {"role": "assistant", "content": words, "tool_calls": json.dumps(calls)}


def result_message(rows: tuple[Row, ...], order: str, id: str) -> dict[str, str]:
    """The tool's result: the rows of the customer's orders, that of `order` last."""
    ordered = sorted(rows, key=lambda row: row.order == order)
    return {"role": "tool", "content": "\n".join(map(row_text, ordered)), "tool_call_id": id, "name": NAME}


def read_answer(text: str) -> ReadAnswer:
    """Words and calls of an answer, in the form of the model or of a judge's prompt."""
    orders = tuple(_order(*match.groups()) for match in _CALL.finditer(text))
    return ReadAnswer(_CALL.sub("", text).strip(), orders)


def _order(body: str | None, name: str | None, arguments: str | None) -> str | None:
    try:
        call = json.loads(body) if body is not None else {"name": name, "arguments": json.loads(arguments or "")}
    except ValueError:
        return None
    match call:
        case {"name": str(called), "arguments": {"order": str(order), **rest}} if called == NAME and not rest:
            return order
        case _:
            return None
