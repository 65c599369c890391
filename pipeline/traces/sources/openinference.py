"""Messages as OpenInference and Vercel's AI SDK put them into attributes: `llm.*_messages.N.message.*` and `ai.*`.

Owns finding them there, on a span or in the metadata that Langfuse keeps of one. `chat` reads them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from pipeline.traces.sources import chat, choices
from pipeline.traces.sources.calls import normal_tools
from pipeline.traces.sources.shapes import Unreadable, decoded, in_order, literal

_CALL = re.compile(r"tool_calls\.(\d+)\.tool_call\.(?:function\.)?(.+)")
_PART = re.compile(r"contents\.(\d+)\.message_content\.(.+)")

Json = dict[str, Any]


def asked(span_attributes: Mapping[str, Any]) -> chat.Chat:
    """The input of a call, from its attributes."""
    messages = _messages(span_attributes, "input")
    content: Any = messages or span_attributes.get("llm.prompts.0.prompt.text")
    content = content or span_attributes.get("ai.prompt.messages", span_attributes.get("ai.prompt"))
    parsed = chat.parse(content or span_attributes.get("input.value"), "user")
    if messages and chat.torn(parsed):
        parsed = chat.Chat([], unreadable="input: a message of llm.input_messages is missing")
    parsed.tools += _tools(span_attributes)
    return parsed


def answered(span_attributes: Mapping[str, Any]) -> chat.Chat:
    """The output of a call, from its attributes.

    Where the provider's response is there too it decides: of several choices, of a refusal, and of parts that an
    instrumentation has not told from reasoning.
    """
    messages = _messages(span_attributes, "output")
    response = _response(span_attributes, whole=not messages)
    if messages:
        parsed = choices.served(list(messages))
        differs = chat.completion(parsed) != chat.completion(response)
        return response if chat.has_answer(response) and differs and not response.unreadable else parsed
    text, calls = span_attributes.get("ai.response.text"), span_attributes.get("ai.response.toolCalls")
    if text or calls:
        return chat.parse({"text": text or "", "toolCalls": calls}, "assistant")
    answer = span_attributes.get("ai.response.object")
    return response if answer is None else chat.parse(answer, "assistant")


def _response(span_attributes: Mapping[str, Any], whole: bool) -> chat.Chat:
    """The response as it came. Without `whole` it has to be a structure: a text is what some object prints."""
    value = span_attributes.get("output.value")
    inner = decoded(value) if isinstance(value, str) else value
    is_structure = isinstance(inner, dict | list)
    as_json = is_structure and "json" in str(span_attributes.get("output.mime_type", ""))
    if not whole and not is_structure:
        return chat.Chat([])
    return choices.of_output(inner if as_json or not whole else value)


def in_metadata(metadata: Any) -> Json:
    """The attributes of the span that Langfuse made an observation of; none where there was no span."""
    held = decoded(metadata) if isinstance(metadata, str) else metadata
    span_attributes = cast(Json, held).get("attributes") if isinstance(held, dict) else None
    span_attributes = decoded(span_attributes) if isinstance(span_attributes, str) else span_attributes
    return cast(Json, span_attributes) if isinstance(span_attributes, dict) else {}


def _messages(span_attributes: Mapping[str, Any], side: str) -> list[Json]:
    """`llm.input_messages.0.message.role` and the like, or the list of messages with such keys."""
    prefix = f"llm.{side}_messages"
    whole = span_attributes.get(prefix)
    whole = decoded(whole) if isinstance(whole, str) else whole
    numbered_messages: dict[int, Json] = {}
    if isinstance(whole, list):
        numbered_messages = {
            n: cast(Json, item) for n, item in enumerate(cast(list[Any], whole)) if isinstance(item, dict)
        }
    for key, value in span_attributes.items():
        number, _, field = key.removeprefix(f"{prefix}.").partition(".")
        if key.startswith(f"{prefix}.") and number.isdecimal():
            numbered_messages.setdefault(int(number), {})[field] = value
    # Of OpenAI's responses the instructions are number 0, whether there are any or not.
    first = 1 if side == "input" and numbered_messages and 0 not in numbered_messages else 0
    return [_message(each, "user" if side == "input" else "assistant") for each in in_order(numbered_messages, first)]


def _tools(span_attributes: Mapping[str, Any]) -> list[Json]:
    """`llm.tools.0.tool.json_schema` and the like, or the list of them; `ai.prompt.tools`; else the request's."""
    numbered = [(key, value) for key, value in span_attributes.items() if key.startswith("llm.tools.")]
    schemas = [value for key, value in sorted(numbered) if key.endswith(".tool.json_schema")]
    whole = [_unquoted(tool) for tool in _listed(span_attributes.get("llm.tools"))]
    offered = normal_tools([*schemas, *whole, *_listed(span_attributes.get("ai.prompt.tools"))])
    return offered or normal_tools(_listed(_object(span_attributes.get("llm.invocation_parameters")).get("tools")))


def _unquoted(value: Any) -> Any:
    """Texts as they were before Python printed them: OpenInference's `crewai` writes names and schemas so."""
    if isinstance(value, dict):
        return {key: _unquoted(inner) for key, inner in cast(Json, value).items()}
    if isinstance(value, list):
        return [_unquoted(inner) for inner in cast(list[Any], value)]
    if not isinstance(value, str) or (value[:1], value[-1:]) not in (("'", "'"), ("{", "}"), ("[", "]")):
        return value
    try:
        return literal(value)
    except Unreadable:
        return value


def _object(value: Any) -> Json:
    value = decoded(value) if isinstance(value, str) else value
    return cast(Json, value) if isinstance(value, dict) else {}


def _listed(value: Any) -> list[Any]:
    value = decoded(value) if isinstance(value, str) else value
    return cast(list[Any], value) if isinstance(value, list) else []


def _message(fields: Json, role: str) -> Json:
    message: Json = {"role": role}
    calls: dict[int, Json] = {}
    parts: dict[int, Json] = {}
    results: list[Json] = []
    for key, value in fields.items():
        field = key.removeprefix("message.")
        if call := _CALL.fullmatch(field):
            calls.setdefault(int(call[1]), {})[call[2]] = _unquoted(value) if call[2] == "name" else value
        elif part := _PART.fullmatch(field):
            parts.setdefault(int(part[1]), {})[part[2]] = value
        elif field.startswith("function."):  # AutoGen's results of tools, of one message several
            result = decoded(value) if isinstance(value, str) else value
            results += [{"type": "tool_result", **cast(Json, result)}] if isinstance(result, dict) else []
        else:
            message[field] = value
    if results:
        message["content"] = results
    if parts:
        message["content"] = in_order(parts)
    if calls:
        message["tool_calls"] = in_order(calls)
    return message
