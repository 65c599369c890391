"""Calls and results in the variants that people and judges have to read, and what they are shown of each."""

import json

from pipeline.core.conversation import conversation, joined
from tests.pipeline.core.tool_templates import LOOKUP, calls

CALLING = conversation(
    {
        "tools": json.dumps([LOOKUP]),
        "messages": [
            {"role": "user", "content": "Wo sind A7 und B9? 東京"},
            {
                "role": "assistant",
                "content": "Ich sehe nach.",
                "tool_calls": calls(("lookup", {"order": "A7"}), ("lookup", {"order": "Ä"})),
            },
            {"role": "tool", "content": '{"error": "no order Ä", "code": 404}', "tool_call_id": "c1"},
            {"role": "tool", "content": "sent", "tool_call_id": "c0"},
        ],
    }
)
"""Two calls at once; the second one's result comes first, and is an error."""
CALLING_SHOWN = [
    'tool: lookup({"type": "object", "properties": {"order": {"type": "string"}}}): Finds an order.',
    "Wo sind A7 und B9? 東京",
    'Ich sehe nach.\ncall: lookup({"order": "A7"})\ncall: lookup({"order": "Ä"})',
    'result of call 2, lookup:\n{"error": "no order Ä", "code": 404}',
    "result of call 1, lookup:\nsent",
]


def _answer(text: str, *each: tuple[str, dict[str, object]]) -> str:
    return joined(text, [{"function": {"name": name, "arguments": arguments}} for name, arguments in each])


PARALLEL = _answer("Both.", ("refund", {"order": "Ä", "euro": 4}), ("ping", {}))
PARALLEL_SHOWN = 'Both.\ncall: refund({"order": "Ä", "euro": 4})\ncall: ping({})'
EMPTY = _answer("", ("ping", {}))
EMPTY_SHOWN = "call: ping({})"
LONG_TEXT = "x" * 40_000
LONG = _answer("", ("note", {"text": LONG_TEXT}))
