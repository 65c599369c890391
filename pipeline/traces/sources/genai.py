"""Messages as OpenTelemetry's GenAI conventions have had them: lists of parts, one event each, one value, numbered.

Owns those shapes, as structure or as JSON in a string. Refuses the span around them: `otel` reads that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, cast

from pipeline.traces.sources import chat, openinference
from pipeline.traces.sources.otlp import Event, attributes
from pipeline.traces.sources.shapes import decoded

_NUMBERED = re.compile(r"gen_ai\.(?P<side>prompt|completion)\.(?P<n>\d+)\.(?P<field>.+)")
_CALL = re.compile(r"tool_calls\.(\d+)\.(.+)")
_EVENT = re.compile(r"gen_ai\.(system|user|assistant|tool)\.message")

Json = dict[str, Any]


def asked(said: Json, events: Iterable[Event]) -> chat.Chat:
    """The input of a call. `said`: the span's attributes."""
    told = [(found[1], event) for name, event in _events(said, events) if (found := _EVENT.fullmatch(name))]
    value = said.get("gen_ai.input.messages", said.get("gen_ai.prompt"))
    value = value or [_message(role, event) for role, event in told] or _numbered(said, "prompt")
    found = chat.parse(value, "user") if value else openinference.asked(said)
    rules = _decoded(said.get("gen_ai.system_instructions"))
    if rules:
        parts = cast(list[Any], rules) if isinstance(rules, list) else [rules]
        found = chat.joined(chat.parse({"role": "system", "parts": parts}, "system"), found)
    return found


def answered(said: Json, events: Iterable[Event]) -> chat.Chat:
    """The output of a call: its first choice, the one that was served."""
    choices = [event for name, event in _events(said, events) if name == "gen_ai.choice"]
    value = _decoded(said.get("gen_ai.output.messages", said.get("gen_ai.completion")))
    value = value or [_message("assistant", choice) for choice in choices] or _numbered(said, "completion")
    if not value:
        return openinference.answered(said)
    return chat.parse(_first(cast(list[Any], value)) if isinstance(value, list) else value, "assistant")


def _first(messages: list[Any]) -> list[Any]:
    """Messages of an output are choices; items of OpenAI's responses are pieces of one."""
    choices = all(isinstance(message, dict) and "role" in message and "type" not in message for message in messages)
    return messages[:1] if choices else messages


def _events(said: Json, events: Iterable[Event]) -> list[tuple[str, Json]]:
    """Name and fields of each event: of the span, or of a list that one attribute holds."""
    listed = _decoded(said.get("events"))
    held = cast(list[Any], listed) if isinstance(listed, list) else []
    found = [(str(each.get("event.name")), cast(Json, each)) for each in held if isinstance(each, dict)]
    return [*found, *((event.name, attributes(event.attributes)) for event in events)]


def _message(role: str, event: Json) -> Json:
    """A message that is an event of its own: its fields are attributes, or JSON in one of them."""
    inner = _decoded(event.get("gen_ai.event.content", event.get("message")))
    body = {**event, **cast(Json, inner)} if isinstance(inner, dict) else event
    nested = _decoded(body.get("message"))
    body = {**body, **cast(Json, nested)} if isinstance(nested, dict) else body
    content: Any = (
        inner if isinstance(inner, (str, list)) else nested if isinstance(nested, list) else body.get("content")
    )
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
    return decoded(value) if isinstance(value, str) else value
