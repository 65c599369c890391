"""The APIs that clients speak: OpenAI's chat completions and responses, Anthropic's messages. All conversations in one
form: messages of OpenTelemetry's GenAI conventions, `{"role", "parts"}`, and flat definitions of tools. What is of a
shape that is not known stays as it came."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple, cast

import msgspec

Json = dict[str, Any]
Turn = dict[str, Any]
TEXT, CALL, RESULT = "text", "tool_call", "tool_call_response"
"""Types of parts."""
_TEXTS = frozenset(("text", "input_text", "output_text"))
_OWN = frozenset(("role", "content", "type", "id", "status", "tool_calls", "tool_call_id"))
"""Fields of a message that the form has elsewhere, or that say nothing of it."""
_ERRORS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large"} | {
    429: "rate_limit_error", 503: "overloaded_error"}  # fmt: skip


class Api(NamedTuple):
    """`path`: below `/v1`. `conversation`: the field of a request; `rules`: the field of what stands before it."""

    path: str
    conversation: str
    rules: str
    error: Callable[[int, str], Json]
    """The body of an HTTP status and a message."""


def _openai(status: int, message: str) -> Json:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


def _anthropic(status: int, message: str) -> Json:
    kind = _ERRORS.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


CHAT = Api("/chat/completions", "messages", "", _openai)
RESPONSES = Api("/responses", "input", "instructions", _openai)
MESSAGES = Api("/messages", "messages", "system", _anthropic)
COUNT = MESSAGES._replace(path="/messages/count_tokens")
APIS = (CHAT, RESPONSES, MESSAGES, COUNT)


def turns_of(conversation: Any, rules: Any = None) -> list[Turn]:
    """The messages of a request, or of an answer; a text is the user's. `rules`: what stands before them."""
    listed = [{"role": "user", "content": conversation}] if isinstance(conversation, str) else conversation
    turns: list[Turn] = [{"role": "system", "parts": _parts(rules)}] if rules else []
    for each in cast(list[Json], listed):
        role, parts, rest = each.get("role"), _parts(each.get("content")), dict[str, Any]()
        if role is None:  # an item of OpenAI's responses
            parts = [_part(each)]
            role = "tool" if parts[0].get("type") == RESULT else "assistant"
        elif role == "tool" and "tool_call_id" in each:
            named = {"name": each["name"]} if each.get("name") else {}
            parts = [{"type": RESULT, "id": each["tool_call_id"], **named, "response": _text(each.get("content"))}]
        else:
            rest = {name: each[name] for name in each.keys() - _OWN if each[name]}
        if role == "user" and (results := [part for part in parts if part.get("type") == RESULT]):
            turns.append({"role": "tool", "parts": results})
            parts = [part for part in parts if part.get("type") != RESULT]
            if not parts:
                continue
        if calls := each.get("tool_calls"):
            made = [_call(call.get("id"), call.get("function")) for call in calls]
            parts, rest = ([*parts, *made], rest) if all(made) else (parts, {**rest, "tool_calls": calls})
        if role == "assistant" and "type" in each and turns and turns[-1]["role"] == role:
            turns[-1]["parts"] += parts
        else:
            turns.append({"role": role, "parts": parts, **rest})
    return turns


def tools_of(tools: Iterable[Json]) -> list[Json]:
    """Definitions of functions as `{"type": "function", "name", "description", "strict", "parameters"}`."""
    flat: list[Json] = []
    for tool in tools:
        held: Json = tool.get("function") or tool
        schema = held.get("parameters", held.get("input_schema"))
        kept = {**{key: held.get(key) for key in ("name", "description", "strict")}, "parameters": schema}
        own = {"type": "function", **{key: value for key, value in kept.items() if value is not None}}
        flat.append(own if "name" in held and (tool.get("type") == "function" or "input_schema" in held) else tool)
    return flat


def _parts(content: Any) -> list[Json]:
    if isinstance(content, str):
        return [{"type": TEXT, "content": content}] if content else []
    return [_part(part) for part in content or []]


def _part(part: Json) -> Json:
    """Of a message, or an item that is none."""
    kind = part.get("type")
    if kind in _TEXTS and isinstance(part.get("text"), str):
        return {"type": TEXT, "content": part["text"]}
    if kind == "tool_use":
        return _call(part.get("id"), {**part, "arguments": part.get("input")}) or part
    if kind == "function_call":
        return _call(part.get("call_id"), part) or part
    if kind in ("tool_result", "function_call_output"):
        returned = _text(part.get("content", part.get("output")))
        return {"type": RESULT, "id": part.get("tool_use_id", part.get("call_id")), "response": returned}
    return part


def _call(id: Any, function: Any) -> Json:
    """Empty where it is no call of a function. Arguments that spell a JSON object are one."""
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return {}
    given = function.get("arguments") or {}
    if isinstance(given, str):
        with suppress(msgspec.DecodeError, RecursionError):
            given = msgspec.json.decode(given, type=Json)
    return {"type": CALL, **({"id": id} if id else {}), "name": function["name"], "arguments": given}


def _text(content: Any) -> Any:
    """What a tool returned: its text, where it is nothing else."""
    parts = _parts(content) if isinstance(content, str | list | None) else [{}]
    return "".join(part["content"] for part in parts) if all(part.get("type") == TEXT for part in parts) else content
