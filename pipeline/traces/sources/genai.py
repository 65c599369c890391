"""Messages as OpenTelemetry's GenAI conventions have had them: lists of parts, one event each, one value, numbered.

Owns those shapes, as structure or as JSON in a string. Refuses the span around them: `otel` reads that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, cast

from pipeline.traces.sources import chat, choices, conventions, openinference
from pipeline.traces.sources.calls import normal_tools
from pipeline.traces.sources.otlp import SpanEvent, attributes
from pipeline.traces.sources.shapes import Unreadable, decoded, in_order

_NUMBERED = re.compile(r"gen_ai\.(?P<side>prompt|completion)\.(?P<n>\d+)\.(?P<field>.+)")
_CALL = re.compile(r"tool_calls\.(\d+)\.(.+)")
_BESIDE = re.compile(r"gen_ai\.completion\.(\d+)\.function_call\.(name|arguments)")
_FUNCTION = re.compile(r"llm\.request\.functions\.(\d+)\.(name|description|parameters|input_schema)")
_TOOLS = ("gen_ai.tool.definitions", "gen_ai.request.tools")
_EVENT = re.compile(r"gen_ai\.(system|user|assistant|tool)\.message")

_KEPT_BY_PROVIDER = ("resp_", "conv_")
"""Beginnings of OpenAI's ids: the request continues what the provider has, and holds its end alone."""

Json = dict[str, Any]


def is_message_event(name: str) -> bool:
    """Whether an event is a message of a call, or a choice."""
    return name == "gen_ai.choice" or _EVENT.fullmatch(name) is not None


def asked(span_attributes: Json, events: Iterable[SpanEvent]) -> chat.Chat:
    """The input of a call. `span_attributes`: the span's attributes."""
    try:
        return _asked(span_attributes, events)
    except Unreadable as odd:
        return chat.Chat([], unreadable=f"input: {odd}")


def answered(span_attributes: Json, events: Iterable[SpanEvent]) -> chat.Chat:
    """The output of a call: its first choice, the one that was served."""
    try:
        return _answered(span_attributes, events)
    except Unreadable as odd:
        return chat.Chat([], unreadable=f"output: {odd}")


def _asked(span_attributes: Json, events: Iterable[SpanEvent]) -> chat.Chat:
    if (recorded := conventions.asked(span_attributes)) is not None:
        return recorded
    messages, _ = _conversation(_events(span_attributes, events))
    value = span_attributes.get("gen_ai.input.messages", span_attributes.get("gen_ai.prompt"))
    value = value or messages or _numbered(span_attributes, "prompt")
    parsed = chat.parse(value, "user") if value else openinference.asked(span_attributes)
    rules = _decoded(span_attributes.get("gen_ai.system_instructions"))
    if rules:
        parts = cast(list[Any], rules) if isinstance(rules, list) else [rules]
        instructions = chat.parse({"role": "system", "parts": parts}, "system")
        parsed = parsed if _begins_with(parsed, instructions) else chat.joined(instructions, parsed)
    if str(span_attributes.get("gen_ai.conversation.id", "")).startswith(_KEPT_BY_PROVIDER):
        parsed = chat.Chat([], unreadable="input: a conversation that the provider keeps")
    if chat.torn(parsed):
        parsed = chat.Chat([], unreadable="input: a tool's result without its call")
    parsed.tools += _tools(span_attributes)
    return parsed


def _answered(span_attributes: Json, events: Iterable[SpanEvent]) -> chat.Chat:
    if (recorded := conventions.answered(span_attributes)) is not None:
        return recorded
    _, answers = _conversation(_events(span_attributes, events))
    value = _decoded(span_attributes.get("gen_ai.output.messages", span_attributes.get("gen_ai.completion")))
    value = value or answers or _numbered(span_attributes, "completion")
    if not value:
        return openinference.answered(span_attributes)
    if not isinstance(value, list):
        return chat.parse(value, "assistant")
    return choices.served(_with_calls(cast(list[Any], value), span_attributes))


def _with_calls(messages: list[Any], span_attributes: Json) -> list[Any]:
    """The messages with the calls that litellm numbers beside the only one: it leaves them out there."""
    calls: dict[int, Json] = {}
    for key, value in span_attributes.items():
        if match := _BESIDE.fullmatch(key):
            calls.setdefault(int(match[1]), {})[match[2]] = value
    only = cast(Json, messages[0]) if len(messages) == 1 and isinstance(messages[0], dict) else {}
    if not calls or not only or only.get("tool_calls") or "tool_call" in str(only.get("parts")):
        return messages
    return [{**only, "tool_calls": [calls[n] for n in sorted(calls)]}]


def lacks_tools(span_attributes: Json) -> bool:
    """Whether tools are called and not all of them are defined: a record of a log or an agent's span may do that."""
    texts = (str(span_attributes.get(key, "")) for key in ("gen_ai.input.messages", "gen_ai.output.messages"))
    if not any("tool_call" in text for text in texts):
        return False
    functions = [tool["function"] for tool in _tools(span_attributes) if isinstance(tool.get("function"), dict)]
    return not functions or any("parameters" not in function for function in functions)


def _begins_with(parsed: chat.Chat, instructions: chat.Chat) -> bool:
    """Whether the instructions are among the messages too: openlit writes them twice."""
    texts = [message["content"] for message in parsed.messages if message["role"] == "system"]
    return bool(texts) and "".join(texts) == "".join(message["content"] for message in instructions.messages)


def _conversation(events: list[tuple[str, Json]]) -> tuple[list[Json], list[Json]]:
    """Messages and answers. Where no event is a choice, the assistant's last messages are the answer."""
    messages = [_message(role[1], event) for name, event in events if (role := _EVENT.fullmatch(name))]
    answers = [_message("assistant", event) for name, event in events if name == "gen_ai.choice"]
    if answers:
        return messages, answers
    last = max((n for n, message in enumerate(messages, 1) if message["role"] != "assistant"), default=0)
    return messages[:last], messages[last:]


def _tools(span_attributes: Json) -> list[Json]:
    """The tools that were offered: one attribute, or numbered fields of functions."""
    functions: dict[int, Json] = {}
    for key, value in span_attributes.items():
        if match := _FUNCTION.fullmatch(key):
            functions.setdefault(int(match[1]), {})[match[2]] = value
    listed = next((span_attributes[key] for key in _TOOLS if span_attributes.get(key)), None)
    return normal_tools(listed) + normal_tools([functions[n] for n in sorted(functions)])


def _events(span_attributes: Json, events: Iterable[SpanEvent]) -> list[tuple[str, Json]]:
    """Name and fields of each event: of the span, or of a list that one attribute holds."""
    listed = _decoded(span_attributes.get("events"))
    held = cast(list[Any], listed) if isinstance(listed, list) else []
    attribute_events = [(str(each.get("event.name")), cast(Json, each)) for each in held if isinstance(each, dict)]
    return [*attribute_events, *((event.name, attributes(event.attributes)) for event in events)]


def _message(role: str, event: Json) -> Json:
    """A message that is an event of its own: its fields are attributes, or JSON in one of them."""
    inner = _decoded(event.get("gen_ai.event.content", event.get("message")))
    body = {**event, **cast(Json, inner)} if isinstance(inner, dict) else event
    nested = _decoded(body.get("message"))
    body = {**body, **cast(Json, nested)} if isinstance(nested, dict) else body
    content: Any = (
        inner if isinstance(inner, (str, list)) else nested if isinstance(nested, list) else body.get("content")
    )
    kept = {k: _decoded(body[k]) for k in ("tool_calls", "finish_reason", "tool_call_id", "name") if k in body}
    if role == "tool" and "id" in body:
        kept.setdefault("tool_call_id", body["id"])
    return {"role": body.get("role") or role, "content": content, **kept}


def _numbered(span_attributes: Json, side: str) -> list[Json]:
    """`gen_ai.prompt.0.role` and the like."""
    numbered_messages: dict[int, Json] = {}
    for key, value in span_attributes.items():
        match = _NUMBERED.fullmatch(key)
        if match is None or match["side"] != side:
            continue
        message = numbered_messages.setdefault(
            int(match["n"]), {"role": "user" if side == "prompt" else "assistant", "content": ""}
        )
        call = _CALL.fullmatch(match["field"])
        if call is None:
            message[match["field"]] = value
        else:
            message.setdefault("calls", {}).setdefault(int(call[1]), {})[call[2]] = value
    messages = in_order(numbered_messages)
    for message in messages:
        calls = message.pop("calls", {})
        message.update({"tool_calls": in_order(calls)} if calls else {})
    return messages


def _decoded(value: Any) -> Any:
    return decoded(value) if isinstance(value, str) else value
