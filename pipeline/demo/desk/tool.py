"""The desk's tool, `lookup_order`: its definition, its calls as messages and as text, and its results."""

import json
import re
from typing import Any, NamedTuple

from pipeline.demo.desk.requests import Row, row_text

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

# Tools are listed after the system's text; calls are written as in Hermes' and Qwen's templates.
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if not loop.first %}{{ '\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + (message['content'] or '') }}"
    "{% if loop.first and tools %}{{ '\nTools' }}{% for tool in tools %}"
    "{{ '\n' + tool.function.name + '(' + (tool.function.parameters.properties | join(', ')) + '): ' "
    "+ tool.function.description }}{% endfor %}{% endif %}"
    "{% for call in message['tool_calls'] or [] %}"
    "{% if not loop.first or message['content'] %}{{ '\n' }}{% endif %}"
    '{{ \'<tool_call>\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{% if call.function.arguments is string %}{{ call.function.arguments }}"
    "{% else %}{{ call.function.arguments | tojson }}{% endif %}{{ '}\n</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '\n<|im_start|>assistant\n' }}{% endif %}"
)

_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>|^call: (\w+)\((\{.*\})\)$", re.DOTALL | re.MULTILINE)


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
