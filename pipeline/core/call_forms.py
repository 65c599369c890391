"""Calls as families of models write them, read into the one form of an answer (`pipeline.core.conversation`).

| family | what is drawn |
|---|---|
| Hermes, Qwen 2.5 and 3 | `<tool_call>{"name", "arguments"}</tool_call>` each: the one form |
| Llama 3.1 to 3.3 | `{"name", "parameters"}` alone, after `<|python_tag|>` or not, several with `;` between |
| Mistral, tokenizers before version 11 | `[TOOL_CALLS] [{"name", "arguments"}, ...]` |
| Mistral, from version 11 on | `[TOOL_CALLS]name[ARGS]{...}` each |

As vLLM's parsers `llama3_json` (commit 13e48c2 of January 2026) and `mistral` (023f36c, 2026) and the chat templates
beside them have it. What is decoded without special tokens lacks `<|python_tag|>`, `[TOOL_CALLS]` and `[ARGS]`: that is
read too. A server that parses calls itself sends `tool_calls`, which need no reading (`serving.completion`). Refuses to
guess: only tools that were offered are called, and an answer with words after its calls is a text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, cast

from pipeline.core.conversation import OPENS, TOOLS, functions, joined

_MARK, _TAG = "[TOOL_CALLS]", "<|python_tag|>"
_BETWEEN = re.compile(rf"(?:[\s;]|{re.escape(_MARK)})*")
_NAMED = re.compile(r"([\w.-]+)(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*(?=\{)")
_decode = json.JSONDecoder().raw_decode


def in_one_form(text: str, messages: Iterable[Mapping[str, Any]]) -> str:
    """A drawn answer with its calls in the one form; as it is where it has none of a tool that `messages` offer."""
    names = {tool["function"].get("name") for m in messages if m["role"] == TOOLS for tool in functions(m["content"])}
    if not names or OPENS in text:
        return text
    if calls := _calls(text.strip().removeprefix(_TAG), names):
        return joined("", calls)
    words, _, marked = text.partition(_MARK)
    calls = _calls(marked, names)
    return joined(words, calls) if calls else text


def _calls(text: str, names: Collection[str]) -> list[dict[str, Any]]:
    """The calls that the text is made of; none where it is made of anything else."""
    calls: list[dict[str, Any]] = []
    at = _after(_BETWEEN, text, 0)
    while at < len(text):
        named = _NAMED.match(text, at)
        try:
            value, at = _decode(text, named.end() if named else at)
        except (ValueError, RecursionError):
            return []
        held = [{"name": named[1], "arguments": value}] if named else value if isinstance(value, list) else [value]
        for each in cast(list[Any], held):
            call = cast(dict[str, Any], each) if isinstance(each, dict) else {}
            arguments = call.get("arguments", call.get("parameters"))
            if call.get("name") not in names or not isinstance(arguments, dict):
                return []
            calls.append({"type": "function", "function": {"name": call["name"], "arguments": arguments}})
        at = _after(_BETWEEN, text, at)
    return calls


def _after(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at
