"""Reads the calls of Llama 3 (`{"name", "parameters"}`) and Mistral (`[TOOL_CALLS]`) into the form of
`pipeline.core.conversation`, as vLLM's parsers do. Only offered tools are called; special tokens may be missing."""

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
    """A drawn answer with its calls in the one form; unchanged where it has none of a tool that `messages` offer."""
    names = {tool["function"].get("name") for m in messages if m["role"] == TOOLS for tool in functions(m["content"])}
    if not names or OPENS in text:
        return text
    if calls := _calls(text.strip().removeprefix(_TAG), names):
        return joined("", calls)
    words, _, marked = text.partition(_MARK)
    calls = _calls(marked, names)
    return joined(words, calls) if calls else text


def _calls(text: str, names: Collection[str]) -> list[dict[str, Any]]:
    """The calls of a text of calls alone; none where there is anything else in it."""
    calls: list[dict[str, Any]] = []
    at = 0
    while (at := _BETWEEN.match(text, at).end()) < len(text):  # pyright: ignore[reportOptionalMemberAccess]
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
    return calls
