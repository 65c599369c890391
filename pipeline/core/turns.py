"""Conversations of three APIs (OpenAI's chat completions and responses, Anthropic's messages) in one form: messages of
OpenTelemetry's GenAI conventions, `{"role", "parts"}`, and flat definitions of tools. What is of another shape stays as
it came."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, cast

import msgspec

TEXT, CALL, RESULT = "text", "tool_call", "tool_call_response"
"""Types of the parts."""
_TEXTS = frozenset(("text", "input_text", "output_text"))
_OWN = frozenset(("role", "content", "type", "id", "status", "tool_calls", "tool_call_id", "name"))
"""Fields of a message that the form has elsewhere, or that say nothing of it."""
_SCHEMAS = ("parameters", "input_schema")
Turn = dict[str, Any]
Part = dict[str, Any]


def turns_of(conversation: Any, rules: Any = None) -> list[Turn]:
    """The messages of a request, or of an answer; a text is the user's. `rules`: instructions that stand apart."""
    listed = [{"role": "user", "content": conversation}] if isinstance(conversation, str) else conversation
    turns: list[Turn] = [{"role": "system", "parts": _parts(rules)}] if rules else []
    for each in cast(list[dict[str, Any]], listed):
        if "role" not in each:  # an item of OpenAI's responses
            part = _part(each)
            role, parts = "tool" if part.get("type") == RESULT else "assistant", [part]
        else:
            role, parts = each["role"], _parts(each.get("content"))
        rest = {name: each[name] for name in each.keys() - _OWN if each[name]} if "role" in each else {}
        if role == "tool" and "tool_call_id" in each:
            named = {"name": each["name"]} if each.get("name") else {}
            parts = [{"type": RESULT, "id": each["tool_call_id"], **named, "response": _text(each.get("content"))}]
        elif role == "user" and (results := [part for part in parts if part.get("type") == RESULT]):
            turns.append({"role": "tool", "parts": results})
            parts = [part for part in parts if part.get("type") != RESULT]
            if not parts:
                continue
        if calls := each.get("tool_calls"):
            made = [_call(call.get("id"), call.get("function")) for call in calls]
            parts += made if all(made) else []
            rest |= {} if all(made) else {"tool_calls": calls}
        if role == "assistant" and "type" in each and turns and turns[-1]["role"] == role:
            turns[-1]["parts"] += parts
        else:
            turns.append({"role": role, "parts": parts, **rest})
    return turns


def tools_of(tools: Iterable[Any]) -> list[dict[str, Any]]:
    """Definitions as `{"type": "function", "name", "description", "parameters"}`."""
    flat: list[dict[str, Any]] = []
    for tool in tools:
        held = cast(dict[str, Any], tool.get("function") or tool)
        schema = next((held[key] for key in _SCHEMAS if held.get(key) is not None), None)
        if tool.get("type", "function") not in ("function", "custom") or "name" not in held or "format" in held:
            flat.append(tool)
            continue
        kept = {key: held[key] for key in ("name", "description", "strict") if held.get(key) is not None}
        flat.append({"type": "function", **kept, **({} if schema is None else {"parameters": schema})})
    return flat


def _parts(content: Any) -> list[Part]:
    if isinstance(content, str):
        return [{"type": TEXT, "content": content}] if content else []
    return [_part(part) for part in content or []]


def _part(part: Any) -> Part:
    """Of a message, or an item that is none."""
    kind = part.get("type")
    if kind in _TEXTS and isinstance(part.get("text"), str):
        return {"type": TEXT, "content": part["text"]}
    if kind == "tool_use":
        return _call(part.get("id"), part | {"arguments": part.get("input")}) or part
    if kind == "function_call":
        return _call(part.get("call_id"), part) or part
    if kind in ("tool_result", "function_call_output"):
        id = part.get("tool_use_id", part.get("call_id"))
        return {"type": RESULT, "id": id, "response": _text(part.get("content", part.get("output")))}
    return part


def _call(id: Any, function: Any) -> Part:
    """Empty where it is no call of a function. Arguments that are a JSON object are one, whatever text spells it."""
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return {}
    given = function.get("arguments")
    if isinstance(given, str):
        with suppress(msgspec.DecodeError, RecursionError):
            given = msgspec.json.decode(given or "{}", type=dict[str, Any])
    return {"type": CALL, **({"id": id} if id else {}), "name": function["name"], "arguments": given or {}}


def _text(content: Any) -> Any:
    """What a tool returned: its text, where it is nothing else."""
    parts = _parts(content) if isinstance(content, str | list | None) else [{}]
    return "".join(part["content"] for part in parts) if all(part.get("type") == TEXT for part in parts) else content
