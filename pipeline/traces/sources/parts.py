"""The parts of a message (text, calls of tools, results, payloads, reasoning) in every provider's words. A part of
another shape raises Unreadable; reasoning is no part of what was said and is left out."""

import re
from typing import Any

import msgspec

from pipeline.traces.sources.shapes import (
    ODD,
    Json,
    decoded,
    is_followed_by_words,
    list_of,
    literal,
    object_of,
    refuse_repr,
    unreadable,
    words,
)

# Kinds as they stand in `type` (Google and Bedrock: as a key), with `-` written as `_`.
TEXTS = words("text input_text output_text")
REASONING = words("reasoning thinking redacted_thinking reasoning_content redacted_reasoning")
CALLS = words("tool_call tool_use function_call server_tool_use mcp_tool_use mcp_approval_request tool_calls")
RESULTS = words("""
    tool_call_response tool_result tool_response function_result function_response server_tool_call_response
    mcp_approval_response
""")
PAYLOADS = words("""
    image image_url input_image image_file output_image audio audio_url input_audio output_audio video video_url
    input_video document document_url media file input_file file_data inline_data blob uri binary container_upload
    computer_screenshot
""")
_CALL_KEYS = ("functionCall", "function_call", "toolUse", "executable_code", "executableCode")
_RESULT_KEYS = ("functionResponse", "function_response", "toolResult", "code_execution_result", "codeExecutionResult")
_SILENT = frozenset({"reasoningContent", "cachePoint"})
"""Keys of Bedrock's parts that hold nothing that was said."""
_PAYLOAD_KEYS = PAYLOADS | {"inlineData", "fileData"}
_OUTPUTS = ("text", "json", "content", "error-text", "error-json")
"""Kinds of what a tool returned, as Vercel's SDK writes them around it."""
SCHEMAS = ("parameters", "input_schema", "inputSchema", "parametersJsonSchema", "parameters_json_schema")
_SILENT_KEYS = words("""
    type block_type content_type id index name annotations citations cache_control thought_signature thoughtSignature
    signature logprobs extras providerOptions meta providerMetadata provider_options part_metadata provider_name
    provider_details state
""")
"""Keys of a part of text that hold nothing that was said."""
_CUT = re.compile(r"\[?\s*\{\s*[\"'](?:type|role)[\"']\s*:\s*[\"'][\w-]+[\"']\s*,").match
"""Parts, or a message, that were cut off: as a whole they would have been JSON."""
_ENVELOPES = ("tool_calls", "toolCalls", "function_call", "choices", "candidates")


class Parts(msgspec.Struct):
    """What a message holds. `calls` are as the source has them; `results` are texts of tools with their parts."""

    texts: list[str] = []
    calls: list[Any] = []
    results: list[tuple[str, Json]] = []
    repeated: list[Any] = []
    """Calls that stood in a text: they count where there are no others."""
    has_payload: bool = False

    @property
    def text(self) -> str:
        return "".join(self.texts)


def parts_of(content: Any) -> Parts:
    """The parts of a message's content. Raises Unreadable."""
    message_parts = Parts()
    _add(content, message_parts)
    message_parts.calls = message_parts.calls or message_parts.repeated
    return message_parts


def is_part(value: Any) -> bool:
    """Whether a value of a list is a part, and not a message or an item of its own."""
    if isinstance(value, str):
        return True
    if not isinstance(value, dict) or "role" in value:
        return False
    part = object_of(value)
    if kind := kind_of(part):
        return kind in TEXTS | REASONING | PAYLOADS | {"refusal"} or is_call_kind(kind) or is_result_kind(kind)
    return _is_text(part) or not {*_CALL_KEYS, *_RESULT_KEYS, *_PAYLOAD_KEYS}.isdisjoint(_given(part))


def is_call_kind(kind: str) -> bool:
    return kind in CALLS or kind.endswith("_call")


def is_result_kind(kind: str) -> bool:
    return kind in RESULTS or kind.endswith(("_call_output", "_call_response", "_tool_result", "_shell_output"))


def is_result(value: Json) -> bool:
    return is_result_kind(kind_of(value)) or not _given(value).isdisjoint(_RESULT_KEYS)


def is_call(value: Json) -> bool:
    """A call that names itself: a tool's name and its arguments."""
    named = object_of(value["function"]) if isinstance(value.get("function"), dict) else value
    name = named.get("name", named.get("toolName", named.get("tool_name")))
    return isinstance(name, str) and not {"arguments", "args", "input"}.isdisjoint(named)


def is_definition(value: Json) -> bool:
    """A tool that was offered: a name and the schema of its arguments."""
    inner = value.get("function", value.get("toolSpec"))
    named = object_of(inner) if isinstance(inner, dict) else value
    return isinstance(named.get("name"), str) and not is_call(value) and not named.keys().isdisjoint(SCHEMAS)


def kind_of(value: Json) -> str:
    kind = value.get("type", value.get("block_type", value.get("content_type", value.get("part_kind"))))
    return kind.replace("-", "_") if isinstance(kind, str) else ""


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
    if items and len(items) == len(value) and all(kind_of(i) in TEXTS or i.keys() <= {"text"} for i in items):
        return parts_of(value).text
    return dumped(value)


def dumped(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _json_blocks(value: Any) -> str | None:
    blocks = list_of(value)
    values = [object_of(block)["json"] for block in blocks if object_of(block).keys() == {"json"}]
    return "".join(map(dumped, values)) if values and len(values) == len(blocks) else None


def _add(content: Any, message_parts: Parts) -> None:
    if isinstance(content, str):
        _add_text(content, message_parts)
    elif isinstance(content, list):
        for part in list_of(content):
            if isinstance(part, str):
                message_parts.texts.append(part)
            elif isinstance(part, dict):
                _add_part(object_of(part), message_parts)
            else:
                raise unreadable(content)
    elif isinstance(content, dict):
        part = object_of(content)
        if not kind_of(part) and isinstance(part.get("parts"), list):
            _add(part["parts"], message_parts)
        else:
            _add_part(part, message_parts)
    elif content is not None:
        raise unreadable(content)


def _add_text(text: str, message_parts: Parts) -> None:
    """A message's text is its own, whatever it says; but instrumentations also put its parts there, as JSON."""
    if not ODD(text):
        message_parts.texts.append(text)
        return
    bare = text.strip()
    inner = decoded(bare)
    python = isinstance(inner, str) and bare.startswith(("{'", "[{'")) and bare.endswith(("}", "]"))
    if isinstance(inner, str):
        refuse_repr(bare)
        inner = literal(bare) if python else inner
    items = list_of(inner) or [inner]
    typed = isinstance(inner, list) or kind_of(object_of(inner))
    if items and typed and all(isinstance(item, dict) and is_part(item) for item in items):
        _add(inner, message_parts)
    elif python or _is_message(inner) or (isinstance(inner, str) and _CUT(bare) and not is_followed_by_words(bare)):
        raise unreadable(inner)
    else:
        message_parts.texts.append(text)


def _add_text_part(text: str, message_parts: Parts) -> None:
    """An instrumentation writes a block that it does not know as JSON into a part of text; a call so is there twice."""
    inner = object_of(decoded(text.strip()) if ODD(text) else text)
    if inner and inner.keys() <= _SILENT:
        return
    if not (kind_of(inner) and is_part(inner)):
        message_parts.texts.append(text)
    elif is_call_kind(kind_of(inner)):
        message_parts.repeated.append(inner)
    else:
        _add_part(inner, message_parts)


def _is_message(value: Any) -> bool:
    """Whether JSON in a text is an envelope of a message, and not what a message says."""

    def is_envelope(item: Json) -> bool:
        said = "role" in item and not item.keys().isdisjoint(("content", "parts"))
        return said or not item.keys().isdisjoint(_ENVELOPES)

    return all(is_envelope(object_of(item)) for item in list_of(value) or [value])


def _add_part(part: Json, message_parts: Parts) -> None:
    kind = kind_of(part)
    if kind in REASONING or kind == "cache_point" or kind == "step_start":
        return
    if is_call_kind(kind):
        message_parts.calls.append(part)
    elif is_result_kind(kind):
        keys = ("response", "result", "content", "output", "function_response")
        value = next((part[key] for key in keys if part.get(key) is not None), None)
        message_parts.results.append((result_text(value), part))
    elif kind in PAYLOADS:
        message_parts.has_payload = True
    elif kind == "refusal" and isinstance(refusal := part.get("refusal", part.get("content")), str):
        message_parts.texts.append(refusal)
    elif kind in TEXTS:
        _add_text_part(_text_of(part), message_parts)
    elif kind:
        raise unreadable(part)
    else:
        _add_keyed(part, message_parts)


def _add_keyed(part: Json, message_parts: Parts) -> None:
    """Google's and Bedrock's parts say what they are by a key."""
    given = _given(part)
    if not given.isdisjoint(_CALL_KEYS) or is_call(part):
        message_parts.calls.append(part)
    elif key := next((key for key in _RESULT_KEYS if key in given), None):
        answer = object_of(part[key]) if isinstance(part[key], dict) else {"response": part[key]}
        value = answer.get("response", answer.get("content", answer.get("output")))
        message_parts.results.append((result_text(value), part))
    elif not given.isdisjoint(_PAYLOAD_KEYS):
        message_parts.has_payload = True
    elif given and given <= {"reasoning", *_SILENT, *_SILENT_KEYS}:
        return
    elif _is_text(part):
        if part.get("thought") is not True:
            message_parts.texts.append(part["text"] if isinstance(part.get("text"), str) else part["refusal"])
    elif given:
        raise unreadable(part)


def _text_of(part: Json) -> str:
    value = part.get("text", part.get("content"))
    if isinstance(value, dict):  # OpenAI's assistants: {"value": ..., "annotations": ...}
        value = object_of(value).get("value")
    if value is None:
        return ""
    if not isinstance(value, str):
        raise unreadable(part)
    return value


def _is_text(part: Json) -> bool:
    given = _given(part) - _SILENT_KEYS
    if given == {"refusal"}:
        return isinstance(part["refusal"], str)
    return isinstance(part.get("text"), str) and given <= {"text", "thought"}


def _given(part: Json) -> set[str]:
    """SDKs write every key that there is, and null for what is not."""
    return {key for key, value in part.items() if value is not None}
