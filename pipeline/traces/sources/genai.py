"""Messages as OpenTelemetry's GenAI conventions have had them: lists of parts, one event each, one value, numbered.

Owns those shapes, as structure or as JSON in a string. Refuses the span around them: `otel` reads that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, cast

import msgspec

from pipeline.traces.rows import Message
from pipeline.traces.sources import chat
from pipeline.traces.sources.otlp import Event, attributes

PAYLOADS = frozenset({"blob", "file", "uri", "image", "audio", "video"})
_NUMBERED = re.compile(r"gen_ai\.(?P<side>prompt|completion)\.(?P<n>\d+)\.(?P<field>.+)")
_CALL = re.compile(r"tool_calls\.(\d+)\.(.+)")
_EVENT = re.compile(r"gen_ai\.(system|user|assistant|tool)\.message")

Json = dict[str, Any]


def asked(said: Json, events: Iterable[Event]) -> chat.Chat:
    """The input of a call. `said`: the span's attributes."""
    told = [(found[1], attributes(e.attributes)) for e in events if (found := _EVENT.fullmatch(e.name))]
    value = said.get("gen_ai.input.messages", said.get("gen_ai.prompt"))
    found = _chat(value or [_message(role, event) for role, event in told] or _numbered(said, "prompt"), "user")
    rules = _decoded(said.get("gen_ai.system_instructions"))
    if rules:
        system = _chat([{"role": "system", "parts": rules if isinstance(rules, list) else [rules]}], "system")
        found.messages = system.messages + found.messages
        found.has_payload = found.has_payload or system.has_payload
    return found


def answered(said: Json, events: Iterable[Event]) -> chat.Chat:
    """The output of a call: its first choice, the one that was served."""
    choices = [attributes(e.attributes) for e in events if e.name == "gen_ai.choice"]
    value = _decoded(said.get("gen_ai.output.messages", said.get("gen_ai.completion")))
    value = value or [_message("assistant", choice) for choice in choices] or _numbered(said, "completion")
    return _chat(cast(list[Any], value)[:1] if isinstance(value, list) else value, "assistant")


def _chat(value: Any, role: str) -> chat.Chat:
    """Messages of parts; any other shape is left to `chat`."""
    value = _decoded(value)
    items = cast(list[Any], value) if isinstance(value, list) else []
    if not items or not all(isinstance(item, dict) and isinstance(item.get("parts"), list) for item in items):
        return chat.parse(value or None, role)
    found = chat.Chat([])
    for item in cast(list[Json], items):
        said = str(item.get("role") or role)
        found.messages += _of_parts(chat.ROLES.get(said, said), item["parts"], found)
        if isinstance(item.get("finish_reason"), str):
            found.finish_reason = item["finish_reason"]
    return found


def _of_parts(role: str, parts: list[Any], found: chat.Chat) -> list[Message]:
    """One message of the text and the tool calls, and one of role `tool` for each response of a tool."""
    texts: list[str] = []
    calls: list[Json] = []
    returned: list[Message] = []
    for value in parts:
        part: Json = cast(Json, value) if isinstance(value, dict) else {"type": "text", "content": value}
        kind = part.get("type")
        if kind == "tool_call":
            calls.append(part)
        elif kind == "tool_call_response":
            answer = part.get("response", part.get("result", part.get("content")))
            returned.append({"role": "tool", "content": _text(answer)})
        elif kind in PAYLOADS:
            found.has_payload = True
        elif kind == "text":
            texts.append(_text(part.get("content")))
        elif kind != "reasoning":
            texts.append(_text(part))
    if returned and not texts and not calls:
        return returned
    message = {"role": role, "content": "".join(texts)}
    return [*returned, {**message, "tool_calls": _text(calls)} if calls else message]


def _message(role: str, event: Json) -> Json:
    """A message that is an event of its own: its fields are attributes, or JSON in one of them."""
    inner = _decoded(event.get("gen_ai.event.content", event.get("message")))
    body = {**event, **cast(Json, inner)} if isinstance(inner, dict) else event
    nested = _decoded(body.get("message"))
    body = {**body, **cast(Json, nested)} if isinstance(nested, dict) else body
    content = inner if isinstance(inner, str) else _decoded(body.get("content"))
    kept = {k: _decoded(body[k]) for k in ("tool_calls", "finish_reason") if k in body}
    return {"role": body.get("role") or role, "content": content, **kept}


def _numbered(said: Json, side: str) -> list[Json]:
    """`gen_ai.prompt.0.role` and the like."""
    found: dict[int, Json] = {}
    for key, value in said.items():
        match = _NUMBERED.fullmatch(key)
        if match is None or match["side"] != side:
            continue
        message = found.setdefault(
            int(match["n"]), {"role": "user" if side == "prompt" else "assistant", "content": ""}
        )
        call = _CALL.fullmatch(match["field"])
        if call is None:
            message[match["field"]] = value
        else:
            message.setdefault("calls", {}).setdefault(int(call[1]), {})[call[2]] = value
    messages = [found[n] for n in sorted(found)]
    for message in messages:
        calls = message.pop("calls", {})
        message.update({"tool_calls": [calls[n] for n in sorted(calls)]} if calls else {})
    return messages


def _decoded(value: Any) -> Any:
    return chat.decoded(value) if isinstance(value, str) else value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else msgspec.json.encode(value).decode()
