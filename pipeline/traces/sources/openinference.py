"""Messages as OpenInference and Vercel's AI SDK put them into attributes: `llm.*_messages.N.message.*` and `ai.*`.

Owns finding them there, on a span or in the metadata that Langfuse keeps of one. `chat` reads them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from pipeline.traces.sources import chat
from pipeline.traces.sources.shapes import decoded

_CALL = re.compile(r"tool_calls\.(\d+)\.tool_call\.(?:function\.)?(.+)")
_PART = re.compile(r"contents\.(\d+)\.message_content\.(.+)")

Json = dict[str, Any]


def asked(said: Mapping[str, Any]) -> chat.Chat:
    """The input of a call, from its attributes."""
    found = _messages(said, "input") or said.get("ai.prompt.messages", said.get("ai.prompt"))
    return chat.parse(found or said.get("input.value"), "user")


def answered(said: Mapping[str, Any]) -> chat.Chat:
    """The output of a call, from its attributes."""
    found: Any = _messages(said, "output")
    if not found:
        text, calls = said.get("ai.response.text"), said.get("ai.response.toolCalls")
        found = {"text": text or "", "toolCalls": calls} if text or calls else said.get("output.value")
    return chat.parse(found, "assistant")


def in_metadata(metadata: Any) -> Json:
    """The attributes of the span that Langfuse made an observation of; none where there was no span."""
    held = decoded(metadata) if isinstance(metadata, str) else metadata
    found = cast(Json, held).get("attributes") if isinstance(held, dict) else None
    found = decoded(found) if isinstance(found, str) else found
    return cast(Json, found) if isinstance(found, dict) else {}


def _messages(said: Mapping[str, Any], side: str) -> list[Json]:
    """`llm.input_messages.0.message.role` and the like, or the list of messages with such keys."""
    prefix = f"llm.{side}_messages"
    whole = said.get(prefix)
    whole = decoded(whole) if isinstance(whole, str) else whole
    found: dict[int, Json] = {}
    if isinstance(whole, list):
        found = {n: cast(Json, item) for n, item in enumerate(cast(list[Any], whole)) if isinstance(item, dict)}
    for key, value in said.items():
        number, _, field = key.removeprefix(f"{prefix}.").partition(".")
        if key.startswith(f"{prefix}.") and number.isdecimal():
            found.setdefault(int(number), {})[field] = value
    return [_message(found[n], "user" if side == "input" else "assistant") for n in sorted(found)]


def _message(fields: Json, role: str) -> Json:
    message: Json = {"role": role}
    calls: dict[int, Json] = {}
    parts: dict[int, Json] = {}
    for key, value in fields.items():
        field = key.removeprefix("message.")
        if call := _CALL.fullmatch(field):
            calls.setdefault(int(call[1]), {})[call[2]] = value
        elif part := _PART.fullmatch(field):
            parts.setdefault(int(part[1]), {})[part[2]] = value
        else:
            message[field] = value
    if parts:
        message["content"] = [parts[n] for n in sorted(parts)]
    if calls:
        message["tool_calls"] = [calls[n] for n in sorted(calls)]
    return message
