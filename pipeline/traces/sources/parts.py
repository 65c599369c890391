"""The parts of a message (text, calls of tools, results, payloads, reasoning) and definitions of tools, out of every
provider's words into OpenAI's (`rows.Message`). A part of another shape raises Unreadable; reasoning is left out."""

import re
from typing import Any

import msgspec

from pipeline.traces.sources.shapes import (
    ODD,
    Json,
    Unreadable,
    decoded,
    grouped,
    is_followed_by_words,
    list_of,
    literal,
    names,
    object_of,
    refuse_repr,
    unreadable,
)

_KINDS = {name: frozenset(kinds) for name, kinds in grouped("kinds").items()}
_RESULT_ENDS, _RESULT_KEYS, _EXECUTED_KEYS = map(names, ("result_ends", "result_keys", "executed_keys"))
_CALL_KEYS, _PAYLOAD_KEYS = names("call_keys"), _KINDS["payload"] | {"inlineData", "fileData"}
_SILENT, _SILENT_KEYS = frozenset(names("silent_parts")), frozenset(names("silent_keys"))
_OUTPUTS = ("text", "json", "content", "error-text", "error-json")
"""Kinds of what a tool returned, as Vercel's SDK writes them around it."""
_CUT = re.compile(r"\[?\s*\{\s*[\"'](?:type|role)[\"']\s*:\s*[\"'][\w-]+[\"']\s*,").match
"""Parts, or a message, that were cut off: as a whole they would have been JSON."""
_ENVELOPES = ("tool_calls", "toolCalls", "function_call", "choices", "candidates")
_IDS, _NAMES, _ARGUMENTS = map(names, ("call_ids", "call_names", "call_arguments"))
_NESTED, _CLIENT_KINDS = names("nested_calls"), {"", *names("client_kinds")}
_SCHEMAS, _DECLARATIONS = names("schemas"), names("declarations")
_PREFIX = re.compile(r"^(message|message_content|tool_call)\.")


class Parts(msgspec.Struct):
    """What a message holds. `calls` are as the source has them; `results` are messages of tools."""

    text: str = ""
    calls: list[Any] = []
    results: list[dict[str, str]] = []
    repeated: list[Any] = []
    """Calls that stood in a text: they count where there are no others."""
    has_payload: bool = False


def undotted(value: Any) -> Any:
    """OpenInference's messages with keys such as `message.role` and `tool_call.function.name`, as everybody's."""
    if isinstance(value, list):
        return [undotted(each) for each in list_of(value)]
    plain: Json = {}
    for key, each in object_of(value).items():
        name, _, inner = _PREFIX.sub("", key).partition(".")
        plain[name] = {**object_of(plain.get(name)), inner: undotted(each)} if inner else undotted(each)
    return plain if isinstance(value, dict) else value


def parts_of(content: Any) -> Parts:
    """The parts of a message's content. Raises Unreadable."""
    parts = Parts()
    _add(content, parts)
    parts.calls = parts.calls or parts.repeated
    return parts


def category(part: Json) -> str | None:
    """What a part is: text, call, result, payload or silent; None for what is no part."""
    if kind := kind_of(part):
        if kind.endswith("_call") or (kind in ("function", "tool") and is_call(part)):
            return "call"
        found = (name for name, kinds in _KINDS.items() if kind in kinds)
        return "result" if kind.endswith(_RESULT_ENDS) else next(found, None)
    given = _given(part)
    if not given.isdisjoint(_CALL_KEYS) or is_call(part):
        return "call"
    for name, keys in (("result", _RESULT_KEYS), ("payload", _PAYLOAD_KEYS)):
        if not given.isdisjoint(keys):
            return name
    if given & _SILENT and given <= _SILENT | _SILENT_KEYS:
        return "silent"
    said = given - _SILENT_KEYS
    if said == {"refusal"} or (said <= {"text", "thought"} and isinstance(part.get("text"), str)):
        return "silent" if part.get("thought") is True else "text"
    return None


def is_part(value: Any) -> bool:
    """Whether a value of a list is a part, and not a message or an item of its own."""
    return isinstance(value, str) or (isinstance(value, dict) and "role" not in value and bool(category(value)))


def kind_of(value: Json) -> str:
    kind = value.get("type", value.get("block_type", value.get("content_type", value.get("part_kind"))))
    return kind.replace("-", "_") if isinstance(kind, str) else ""


def is_call(value: Json) -> bool:
    """A call that names itself: a tool's name and its arguments."""
    named = object_of(value["function"]) if isinstance(value.get("function"), dict) else value
    return _first_text(named, _NAMES) is not None and not {"arguments", "args", "input"}.isdisjoint(named)


def is_definition(value: Json) -> bool:
    """A tool that was offered: a name and the schema of its arguments."""
    inner = value.get("function", value.get("toolSpec"))
    named = object_of(inner) if isinstance(inner, dict) else value
    return isinstance(named.get("name"), str) and not is_call(value) and not named.keys().isdisjoint(_SCHEMAS)


def _given(part: Json) -> set[str]:
    """SDKs write every key that there is, and null for what is not."""
    return {key for key, value in part.items() if value is not None}


def _first_text(value: Json, keys: tuple[str, ...]) -> str | None:
    return next((value[key] for key in keys if isinstance(value.get(key), str) and value[key]), None)


def _add(content: Any, parts: Parts) -> None:
    if isinstance(content, str):
        _add_text(content, parts)
    elif isinstance(content, list):
        for part in list_of(content):
            if isinstance(part, str):
                parts.text += part
            elif isinstance(part, dict):
                _add_part(object_of(part), parts)
            else:
                raise unreadable(content)
    elif isinstance(content, dict):
        part = object_of(content)
        if not kind_of(part) and isinstance(part.get("parts"), list):
            _add(part["parts"], parts)
        else:
            _add_part(part, parts)
    elif content is not None:
        raise unreadable(content)


def _add_part(part: Json, parts: Parts) -> None:
    match category(part):
        case "call":
            parts.calls.append(part)
        case "result":
            parts.results.append(_result(part))
        case "payload":
            parts.has_payload = True
        case "text":
            _add_text_part(part, parts)
        case None if _given(part):
            raise unreadable(part)
        case _:
            pass


def _add_text(text: str, parts: Parts) -> None:
    """A message's text is its own, whatever it says; but instrumentations also put its parts there, as JSON."""
    bare = text.strip()
    inner = decoded(bare) if ODD(text) else text
    printed = False
    if isinstance(inner, str) and ODD(text):
        refuse_repr(bare)
        printed = bare.startswith(("{'", "[{'")) and bare.endswith(("}", "]"))
        inner = literal(bare) if printed else inner
        if isinstance(inner, str) and _CUT(bare) and not is_followed_by_words(bare):
            raise unreadable(inner)
    items = list_of(inner) or [inner]
    typed = isinstance(inner, list) or kind_of(object_of(inner))
    if typed and all(isinstance(item, dict) and is_part(item) for item in items):
        _add(inner, parts)
    elif printed or (not isinstance(inner, str) and all(_is_message(object_of(item)) for item in items)):
        raise unreadable(inner)
    else:
        parts.text += text


def _is_message(item: Json) -> bool:
    """Whether JSON in a text is an envelope of a message, and not what a message says."""
    said = "role" in item and not item.keys().isdisjoint(("content", "parts"))
    return said or not item.keys().isdisjoint(_ENVELOPES)


def _add_text_part(part: Json, parts: Parts) -> None:
    """An instrumentation writes a block that it does not know as JSON into a part of text; a call so is there twice."""
    text = part.get("text", part.get("content", part.get("refusal")))
    if kind_of(part) == "refusal":
        text = part.get("refusal", text)
    if isinstance(text, dict):  # OpenAI's assistants: {"value": ..., "annotations": ...}
        text = object_of(text).get("value")
    if not isinstance(text, str | None):
        raise unreadable(part)
    inner = object_of(decoded(text.strip())) if text and ODD(text) else {}
    found = category(inner) if inner else None
    if not inner or (found is None or not (kind_of(inner) or inner.keys() <= _SILENT)):
        parts.text += text or ""
    elif found == "call":
        parts.repeated.append(inner)
    else:
        _add_part(inner, parts)


def result_of(text: str, value: Json, is_message: bool = False) -> dict[str, str]:
    """The message of a tool's result. The `id` of a part is its call's in OpenTelemetry's conventions; that of a
    message is its own."""
    inner = next((object_of(value[key]) for key in _RESULT_KEYS if isinstance(value.get(key), dict)), value)
    keys = _IDS[:-1] if is_message else _IDS
    called = next((str(inner[key]) for key in keys if inner.get(key) not in (None, "")), None)
    name = _first_text(inner, _NAMES)
    message = {"role": "tool", "content": text}
    return message | ({"tool_call_id": called} if called else {}) | ({"name": name} if name else {})


def _result(part: Json) -> dict[str, str]:
    held = next((part[key] for key in _RESULT_KEYS if part.get(key) is not None), part)
    held = object_of(held) if isinstance(held, dict) else {"response": held}
    keys = ("response", "result", "content", "output")
    return result_of(result_text(next((held[key] for key in keys if held.get(key) is not None), None)), part)


def result_text(value: Any) -> str:
    """What a tool returned, as the model was shown it: text, or the JSON of a value."""
    if value is None or isinstance(value, str):
        blocks = decoded(value) if value and value.startswith('[{"json":') else None
        return _json_blocks(blocks) or value or ""
    if object_of(value).get("type") in _OUTPUTS and "value" in value:
        return result_text(value["value"])
    if (inner := _json_blocks(value)) is not None:
        return inner
    items = [object_of(item) for item in list_of(value) if isinstance(item, dict)]
    if items and len(items) == len(value) and all(category(item) == "text" for item in items):
        return parts_of(value).text
    return dumped(value)


def dumped(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _json_blocks(value: Any) -> str | None:
    blocks = list_of(value)
    values = [object_of(block)["json"] for block in blocks if object_of(block).keys() == {"json"}]
    return "".join(map(dumped, values)) if values and len(values) == len(blocks) else None


def normal_calls(calls: list[Any]) -> list[Json]:
    """Calls as `{"id", "type": "function", "function": {"name", "arguments"}}`; what the provider executes itself (a
    web search) keeps its kind as type. A call without a name raises Unreadable."""
    return [each for call in calls for each in _normal_call(call)]


def _normal_call(call: Any) -> list[Json]:
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
    function = {"name": name or kind.removesuffix("_call"), "arguments": _arguments(arguments)}
    return [{**({"id": called} if called else {}), "type": kind, "function": function}]


def _arguments(value: Any) -> str:
    """Arguments as JSON text, as the model wrote it. Some instrumentations write it as JSON twice, or as Python prints
    it."""
    if not isinstance(value, str):
        return "{}" if value is None else dumped(value)
    inner = decoded(value)
    if isinstance(inner, str) and not isinstance(decoded(inner), str):
        return inner
    try:
        return dumped(literal(value)) if value.startswith("{'") else value or "{}"
    except Unreadable:  # the model wrote it so
        return value


def normal_tools(definitions: Any) -> list[Json]:
    """Definitions in OpenAI's form; what is none of a function (a provider's own tool) stays as it is."""
    parsed = decoded(definitions)
    if isinstance(parsed, dict):
        held = object_of(parsed)
        inner = next((held[key] for key in ("tools", *_DECLARATIONS) if key in held), None)
        if inner is not None:
            return normal_tools(inner)
        by_name = [{"name": name, **object_of(each)} for name, each in held.items() if isinstance(each, dict)]
        is_tool = "type" in held or isinstance(held.get("name"), str) or is_definition(held)
        if not is_tool and len(by_name) == len(held) and all(map(is_definition, by_name)):
            return normal_tools(by_name)  # AI SDK: {"weather": {"description": ..., "inputSchema": ...}}
        parsed = [held]
    tools: list[Json] = []
    for item in list_of(parsed):
        if isinstance(item := decoded(item), dict):
            tool = object_of(decoded(item.get("tool.json_schema", item)))
            declared = next((tool[key] for key in _DECLARATIONS if tool.get(key)), None)
            tools += normal_tools(declared) if declared is not None else [_normal_tool(tool)]
    return tools


def _normal_tool(tool: Json) -> Json:
    inner = tool.get("function", tool.get("toolSpec"))
    named = object_of(inner) if isinstance(inner, dict) else tool
    schema = decoded(next((named[key] for key in _SCHEMAS if named.get(key) is not None), None))
    if not isinstance(named.get("name"), str) or (schema is None and kind_of(tool) not in ("", "function")):
        return tool
    schema = object_of(schema).get("json", schema)  # Bedrock
    kept = {key: named[key] for key in ("name", "description", "strict") if named.get(key) is not None}
    return {"type": "function", "function": kept if schema is None else {**kept, "parameters": schema}}
