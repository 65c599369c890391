"""Calls of tools, their results and the definitions of the tools, out of every provider's words into OpenAI's.

Owns the one form in which the governed table has them (`rows.Message`): a call is `{"id", "type": "function",
"function": {"name", "arguments"}}`, arguments a JSON string exactly as the model wrote them where it wrote a string; a
definition is `{"type": "function", "function": {...}}`. What the provider executes itself (a web search) keeps its kind
as type. Refuses a call without a name: it is unreadable.
"""

from __future__ import annotations

from typing import Any, cast

from pipeline.traces.sources.parts import Json, dumped, kind_of
from pipeline.traces.sources.shapes import Unreadable, decoded, literal, unreadable

_IDS = ("call_id", "tool_call_id", "toolCallId", "tool_use_id", "toolUseId", "tool_id", "callId", "id")
_NAMES = ("name", "toolName", "tool_name")
_ARGUMENTS = ("arguments", "args", "input", "tool_kwargs", "kwargs", "parameters")
_NESTED = ("function", "functionCall", "function_call", "toolUse", "custom", "tool_call", "toolCall")
_DECLARATIONS = ("function_declarations", "functionDeclarations")
_SCHEMAS = ("parameters", "input_schema", "inputSchema", "parametersJsonSchema", "parameters_json_schema")
_RESULTS = ("functionResponse", "function_response", "toolResult")
_EXECUTED_KEYS = ("executable_code", "executableCode")
_CLIENT_KINDS = frozenset(
    {"", "function", "function_call", "tool_call", "tool_calls", "tool_use", "tool", "custom", "custom_tool_call"}
)
"""Kinds of calls that the client answers; others are executed by the provider."""


def normal_calls(calls: list[Any]) -> list[Json]:
    """Calls in the table's form. Raises Unreadable."""
    return [each for call in calls for each in _normal(call)]


def result_of(text: str, value: Json, is_message: bool = False) -> dict[str, str]:
    """The message of a tool's result, with `tool_call_id` and `name` where `value` says them.

    The `id` of a part is its call's in OpenTelemetry's conventions; that of a message is its own.
    """
    inner = next((cast(Json, value[key]) for key in _RESULTS if isinstance(value.get(key), dict)), value)
    keys = _IDS[:-1] if is_message else _IDS
    called = next((str(inner[key]) for key in keys if inner.get(key) not in (None, "")), None)
    name = _first_text(inner, _NAMES)
    message = {"role": "tool", "content": text}
    return message | ({"tool_call_id": called} if called else {}) | ({"name": name} if name else {})


def normal_tools(definitions: Any) -> list[Json]:
    """Definitions in OpenAI's form; what is none of a function (a provider's own tool) stays as it is."""
    parsed = decoded(definitions) if isinstance(definitions, str) else definitions
    if isinstance(parsed, dict):
        held = cast(Json, parsed)
        inner = next((held[key] for key in ("tools", *_DECLARATIONS) if key in held), None)
        if inner is not None:
            return normal_tools(inner)
        by_name = [{"name": name, **cast(Json, each)} for name, each in held.items() if isinstance(each, dict)]
        if not _is_tool(held) and len(by_name) == len(held) and all(map(_schema_of, by_name)):
            return normal_tools(by_name)  # AI SDK: {"weather": {"description": ..., "inputSchema": ...}}
        parsed = [held]
    if not isinstance(parsed, list):
        return []
    tools: list[Json] = []
    for item in cast(list[Any], parsed):
        item = decoded(item) if isinstance(item, str) else item
        if not isinstance(item, dict):
            continue
        tool = cast(Json, item)
        nested = next((tool[key] for key in _DECLARATIONS if tool.get(key)), None)
        tools += normal_tools(nested) if nested is not None else [_normal_tool(tool)]
    return tools


def _is_tool(value: Json) -> bool:
    nested = value.get("function", value.get("toolSpec"))
    return isinstance(value.get("name"), str) or isinstance(nested, dict) or "type" in value


def _schema_of(value: Json) -> Any:
    return next((value[key] for key in _SCHEMAS if value.get(key) is not None), None)


def _normal_tool(tool: Json) -> Json:
    inner = tool.get("function", tool.get("toolSpec"))
    named = cast(Json, inner) if isinstance(inner, dict) else tool
    schema = _schema_of(named)
    if not isinstance(named.get("name"), str) or (schema is None and kind_of(tool) not in ("", "function")):
        return tool
    schema = decoded(schema) if isinstance(schema, str) else schema
    if isinstance(schema, dict) and set(cast(Json, schema)) == {"json"}:  # Bedrock
        schema = cast(Json, schema)["json"]
    kept = {key: named[key] for key in ("name", "description", "strict") if named.get(key) is not None}
    return {"type": "function", "function": kept if schema is None else {**kept, "parameters": schema}}


def _normal(call: Any) -> list[Json]:
    value = decoded(call) if isinstance(call, str) else call
    if not isinstance(value, dict):
        raise unreadable(call)
    outer = cast(Json, value)
    several = outer.get("tool_calls")
    if isinstance(several, list):
        return normal_calls(cast(list[Any], several))
    inner = next((cast(Json, outer[key]) for key in _NESTED if isinstance(outer.get(key), dict)), outer)
    called = next((str(v[key]) for v in (outer, inner) for key in _IDS if v.get(key) not in (None, "")), None)
    identity: Json = {"id": called} if called else {}
    kind, name = kind_of(outer), _first_text(inner, _NAMES)
    arguments = next((inner[key] for key in _ARGUMENTS if inner.get(key) is not None), None)
    if kind in _CLIENT_KINDS and name:
        kind = "function"
    elif kind in _CLIENT_KINDS:
        kind = next((key for key in _EXECUTED_KEYS if key in outer), "")
        arguments = outer.get(kind)
    if not kind:
        raise unreadable(call)
    if kind != "function" and arguments is None:
        beside = {"id", "type", "status", "name", *_IDS}
        arguments = {key: each for key, each in outer.items() if key not in beside and each is not None}
    function = {"name": name or kind.removesuffix("_call"), "arguments": _text_of(arguments)}
    return [{**identity, "type": kind, "function": function}]


def _first_text(value: Json, keys: tuple[str, ...]) -> str | None:
    return next((value[key] for key in keys if isinstance(value.get(key), str) and value[key]), None)


def _text_of(arguments: Any) -> str:
    """Arguments as JSON text: a string as the model wrote it, nothing as no arguments.

    Instrumentations also write them as JSON twice, or as Python prints a dictionary.
    """
    if not isinstance(arguments, str):
        return "{}" if arguments is None else dumped(arguments)
    inner = decoded(arguments)
    if isinstance(inner, str) and inner != arguments and not isinstance(decoded(inner), str):
        return inner
    if arguments.startswith("{'"):
        try:
            return dumped(literal(arguments))
        except Unreadable:  # the model wrote it so
            return arguments
    return arguments or "{}"
