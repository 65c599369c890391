"""A chat template with tools, in the shape of Qwen's and Hermes', and conversations with calls for it."""

import json
from typing import Any

TOOL_TEMPLATE = """\
{%- if tools %}{{ '<|im_start|>system\n' }}{% for tool in tools %}{{ tool | tojson }}{{ '\n' }}{% endfor %}\
{{ '<|im_end|>\n' }}{% endif %}\
{%- for message in messages %}{% if not loop.first %}{{ '\n' }}{% endif %}{{ '<|im_start|>' + message.role + '\n' }}\
{{- message.content or '' }}\
{%- for call in message.tool_calls or [] %}{% if message.content or not loop.first %}{{ '\n' }}{% endif %}\
{{ '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}{{ call.function.arguments | tojson }}\
{{- '}\n</tool_call>' }}{% endfor %}{{ '<|im_end|>' }}{% endfor %}\
{%- if add_generation_prompt %}{{ '\n<|im_start|>assistant\n' }}{% endif %}"""

LOOKUP = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Finds an order.",
        "parameters": {"type": "object", "properties": {"order": {"type": "string"}}},
    },
}
OFFERED = {"role": "tools", "content": json.dumps([LOOKUP])}


def calls(*each: tuple[str, dict[str, Any]]) -> str:
    """`tool_calls` of a message, as the governed table has them."""
    return json.dumps(
        [
            {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for n, (name, arguments) in enumerate(each)
        ]
    )


def answer(name: str, arguments: dict[str, Any]) -> str:
    """An answer that is one call."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
