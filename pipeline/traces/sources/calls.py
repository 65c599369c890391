"""Calls of tools, their results and the definitions of the tools, out of every provider's words into OpenAI's, the one
form in which the governed table has them (`rows.Message`). A call without a name is Unreadable."""

from typing import Any

from pipeline.traces.sources.parts import SCHEMAS, dumped, kind_of
from pipeline.traces.sources.shapes import Json, Unreadable, decoded, list_of, literal, object_of, unreadable

_IDS = ("call_id", "tool_call_id", "toolCallId", "tool_use_id", "toolUseId", "tool_id", "callId", "id")
_NAMES = ("name", "toolName", "tool_name")
_ARGUMENTS = ("arguments", "args", "input", "tool_kwargs", "kwargs", "parameters")
_NESTED = ("function", "functionCall", "function_call", "toolUse", "custom", "tool_call", "toolCall")
_DECLARATIONS = ("function_declarations", "functionDeclarations")
_RESULTS = ("functionResponse", "function_response", "toolResult")
_EXECUTED_KEYS = ("executable_code", "executableCode")
_CLIENT_KINDS = frozenset(
    {"", "function", "function_call", "tool_call", "tool_calls", "tool_use", "tool", "custom", "custom_tool_call"}
)
"""Kinds of calls that the client answers; others are executed by the provider."""


def normal_calls(calls: list[Any]) -> list[Json]:
    """Calls as `{"id", "type": "function", "function": {"name", "arguments"}}`; what the provider executes itself (a
    web search) keeps its kind as type. Raises Unreadable."""
    return [each for call in calls for each in _normal(call)]


def result_of(text: str, value: Json, is_message: bool = False) -> dict[str, str]:
    """The message of a tool's result. The `id` of a part is its call's in OpenTelemetry's conventions; that of a
    message is its own."""
    inner = next((object_of(value[key]) for key in _RESULTS if isinstance(value.get(key), dict)), value)
    keys = _IDS[:-1] if is_message else _IDS
    called = next((str(inner[key]) for key in keys if inner.get(key) not in (None, "")), None)
    name = _first_text(inner, _NAMES)
    message = {"role": "tool", "content": text}
    return message | ({"tool_call_id": called} if called else {}) | ({"name": name} if name else {})


def normal_tools(definitions: Any) -> list[Json]:
    """Definitions in OpenAI's form; what is none of a function (a provider's own tool) stays as it is."""
    parsed = decoded(definitions)
    if isinstance(parsed, dict):
        held = object_of(parsed)
        inner = next((held[key] for key in ("tools", *_DECLARATIONS) if key in held), None)
        if inner is not None:
            return normal_tools(inner)
        by_name = [{"name": name, **object_of(each)} for name, each in held.items() if isinstance(each, dict)]
        nested = held.get("function", held.get("toolSpec"))
        is_tool = isinstance(held.get("name"), str) or isinstance(nested, dict) or "type" in held
        if not is_tool and len(by_name) == len(held) and all(map(_schema_of, by_name)):
            return normal_tools(by_name)  # AI SDK: {"weather": {"description": ..., "inputSchema": ...}}
        parsed = [held]
    tools: list[Json] = []
    for item in list_of(parsed):
        if isinstance(item := decoded(item), dict):
            tool = object_of(item)
            declared = next((tool[key] for key in _DECLARATIONS if tool.get(key)), None)
            tools += normal_tools(declared) if declared is not None else [_normal_tool(tool)]
    return tools


def _schema_of(value: Json) -> Any:
    return next((value[key] for key in SCHEMAS if value.get(key) is not None), None)


def _normal_tool(tool: Json) -> Json:
    inner = tool.get("function", tool.get("toolSpec"))
    named = object_of(inner) if isinstance(inner, dict) else tool
    schema = _schema_of(named)
    if not isinstance(named.get("name"), str) or (schema is None and kind_of(tool) not in ("", "function")):
        return tool
    schema = decoded(schema)
    if object_of(schema).keys() == {"json"}:  # Bedrock
        schema = schema["json"]
    kept = {key: named[key] for key in ("name", "description", "strict") if named.get(key) is not None}
    return {"type": "function", "function": kept if schema is None else {**kept, "parameters": schema}}


def _normal(call: Any) -> list[Json]:
    outer = decoded(call)
    if not isinstance(outer, dict):
        raise unreadable(call)
    outer = object_of(outer)
    if isinstance(outer.get("tool_calls"), list):
        return normal_calls(list_of(outer["tool_calls"]))
    inner = next((object_of(outer[key]) for key in _NESTED if isinstance(outer.get(key), dict)), outer)
    called = next((str(v[key]) for v in (outer, inner) for key in _IDS if v.get(key) not in (None, "")), None)
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
        known = {"type", "status", "name", *_IDS}
        arguments = {key: each for key, each in outer.items() if key not in known and each is not None}
    function = {"name": name or kind.removesuffix("_call"), "arguments": _text_of(arguments)}
    return [{**({"id": called} if called else {}), "type": kind, "function": function}]


def _first_text(value: Json, keys: tuple[str, ...]) -> str | None:
    return next((value[key] for key in keys if isinstance(value.get(key), str) and value[key]), None)


def _text_of(arguments: Any) -> str:
    """Arguments as JSON text, as the model wrote it. Instrumentations write it as JSON twice, or as Python prints
    it."""
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
