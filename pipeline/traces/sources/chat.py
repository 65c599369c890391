"""Chat text in the shapes that SDKs log it: OpenAI chat and responses, Gemini, LangChain, plain text, JSON in a string.

Owns turning a logged input or output into messages. Refuses to guess: JSON of no known shape stays the text it was,
and a part that is not text is reported, never dropped in silence.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec

from pipeline.traces.rows import Message

ROLES = {"human": "user", "ai": "assistant", "model": "assistant", "developer": "system", "function": "tool"}
# Where a shape keeps its messages, the most specific key first.
WRAPPERS = ("messages", "contents", "choices", "candidates", "output", "message", "prompt", "args", "input", "content")
# Parts that are not text, by `type` (OpenAI) or by key (Gemini).
PAYLOADS = frozenset({"image", "image_url", "input_image", "audio", "input_audio", "video", "document", "media"}).union(
    {"file", "input_file", "file_data", "inline_data"}
)
LANGCHAIN = frozenset({*ROLES, "system", "tool"})
"""LangChain names a message's role in `type`."""


class Chat(msgspec.Struct):
    """Messages of a logged value. `has_payload`: it also held something other than text."""

    messages: list[Message]
    has_payload: bool = False
    finish_reason: str | None = None


def parse(value: Any, role: str) -> Chat:
    """The messages of a logged input (role "user") or output (role "assistant"); none for null and empty text."""
    chat = Chat([])
    found = _messages(value, role, chat)
    if found is None:
        found = [{"role": role, "content": _dumped(value)}]
    chat.messages = found
    return chat


def completion(chat: Chat) -> str:
    """The text that the model answered with: its last message (a LangGraph output repeats the whole conversation)."""
    return chat.messages[-1]["content"] if chat.messages and chat.messages[-1]["role"] == "assistant" else ""


def tool_calls(chat: Chat) -> str | None:
    """The calls of tools that go with `completion`, as JSON text."""
    last = chat.messages[-1] if chat.messages else {}
    return last.get("tool_calls") if last.get("role") == "assistant" else None


def decoded(text: str) -> Any:
    """The value of JSON in a string; the string itself when it is plain text."""
    if text[:1] not in ('"', "{", "["):
        return text
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def _messages(value: Any, role: str, chat: Chat) -> list[Message] | None:
    """None: no shape that we know."""
    if value is None or value == "":
        return []
    if isinstance(value, str):
        inner = decoded(value)
        found = None if inner == value else _messages(inner, role, chat)
        return [{"role": role, "content": value}] if found is None else found
    if isinstance(value, list):
        each = [_messages(item, role, chat) for item in cast(list[Any], value)]
        return None if None in each else [message for found in each for message in found or []]
    if isinstance(value, dict):
        return _of_dict(cast(dict[str, Any], value), role, chat)
    return None


def _of_dict(value: dict[str, Any], role: str, chat: Chat) -> list[Message] | None:
    kind = str(value.get("type"))
    finish = value.get("finish_reason", value.get("finishReason"))
    if isinstance(finish, str):
        chat.finish_reason = finish
    if kind == "reasoning":
        return []
    if kind == "function_call":
        return [{"role": "assistant", "content": "", "tool_calls": _dumped([value])}]
    if kind == "function_call_output":
        return [{"role": "tool", "content": _text(value.get("output"), chat)}]
    if isinstance(value.get("role"), str) or (kind in LANGCHAIN and "content" in value):
        said = str(value.get("role") or kind)
        return [_message(ROLES.get(said, said), value, chat)]
    if "parts" in value:
        return [_message(role, value, chat)]
    for key in WRAPPERS:
        if key in value:
            inner: Any = value[key]
            if key in ("choices", "candidates") and isinstance(inner, list):
                inner = cast(list[Any], inner)[:1]  # the first sample is the one that was served
            return _messages(inner, role, chat)
    text = value.get("text")
    return [{"role": role, "content": text}] if isinstance(text, str) else None


def _message(role: str, value: dict[str, Any], chat: Chat) -> Message:
    extra = value.get("additional_kwargs")
    calls = value.get("tool_calls")
    if not calls and isinstance(extra, dict):
        calls = cast(dict[str, Any], extra).get("tool_calls")
    if not calls and value.get("function_call"):
        calls = [value["function_call"]]
    content: Any = value.get("content", value.get("parts"))
    if isinstance(content, list):
        parts = cast(list[Any], content)
        called = [part for part in parts if _is_call(part)]
        calls, content = calls or called, [part for part in parts if not _is_call(part)] if called else parts
    message = {"role": role, "content": _text(content, chat)}
    return {**message, "tool_calls": _dumped(calls)} if calls else message


def _text(content: Any, chat: Chat) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = cast(list[Any], content)
        return "".join(_text(part, chat) for part in parts) if all(map(_is_part, parts)) else _dumped(parts)
    if isinstance(content, dict):
        part = cast(dict[str, Any], content)
        if str(part.get("type")) in PAYLOADS or PAYLOADS & part.keys():
            chat.has_payload = True
            return ""
        for key in ("text", "refusal"):
            if isinstance(part.get(key), str):
                return part[key]
        if "parts" in part:
            return _text(part["parts"], chat)
    return _dumped(content)


def _is_call(value: Any) -> bool:
    """Anthropic's and Gemini's tool calls stand among the parts of the text."""
    if not isinstance(value, dict):
        return False
    part = cast(dict[str, Any], value)
    return part.get("type") in ("tool_use", "tool_call") or not {"functionCall", "function_call"}.isdisjoint(part)


def _is_part(value: Any) -> bool:
    """Whether a list that holds it is text in parts, and not a value that a tool returned."""
    keys = {"text", "refusal", "type", *PAYLOADS}
    return isinstance(value, str) or (isinstance(value, dict) and not keys.isdisjoint(cast(dict[str, Any], value)))


def _dumped(value: Any) -> str:
    return msgspec.json.encode(value).decode()
