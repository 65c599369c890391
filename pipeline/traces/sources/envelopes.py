"""Where requests, responses and the wrappings of frameworks keep their messages. Unknown keys that may hold text raise
Unreadable: a prompt without its context is a wrong prompt."""

from typing import Any, NamedTuple

from pipeline.traces.sources.parts import is_part, kind_of
from pipeline.traces.sources.shapes import Json, list_of, names, object_of, unreadable

CONTENTS = names("contents")
MESSAGE, _SETTINGS, _ANSWERED, _CHAT = map(frozenset, map(names, ("message", "settings", "answered", "chat")))


class EnvelopeContent(NamedTuple):
    """What an envelope holds: a value of messages, and whose they are where they don't say it."""

    value: Any
    role: str
    rules: Any = None
    """Instructions that come before it."""
    ending: Json | None = None
    """What says why the answer ended."""
    sampled: bool = False
    """It is one of the samples that a model gave."""
    failed: bool = False


def opened(value: Json, role: str) -> EnvelopeContent:
    keys = {key for key, inner in value.items() if inner is not None}
    keys -= {key for key in ("suffix", "echo") if not value.get(key)}
    if value.get("error") and keys.isdisjoint(("choices", "candidates", "output", "content", "text", "message")):
        return EnvelopeContent(None, role, failed=True)
    for key in ("choices", "candidates", "generations"):
        if isinstance(value.get(key), list):
            return _sample(list_of(value[key]))
    ways = (_conversation, _request if role == "user" else _response, _message)
    unwrapped = next((found for way in ways if (found := way(value, keys, role))), None)
    if unwrapped is None:
        raise unreadable(value)
    return unwrapped


def is_data(value: Any) -> bool:
    """Whether JSON that stood in a text may be an answer in JSON: objects or numbers, and no key of a chat's."""
    if isinstance(value, dict):
        inner = object_of(value)
        known = is_part(inner) or not inner.keys().isdisjoint(_CHAT)
        return bool(inner) and not known and all(map(_is_plain_or_data, inner.values()))
    items = list_of(value)
    strange = any(isinstance(item, str) or kind_of(object_of(item)) for item in items)  # parts of an unknown kind
    return bool(items) and not strange and all(map(_is_plain_or_data, items))


def _is_plain_or_data(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain_or_data, list_of(value)))
    return is_data(value) or value == {} if isinstance(value, dict) else True


def _sample(samples: list[Any]) -> EnvelopeContent:
    """The first sample is the one that was served."""
    first = samples[0] if samples else {}
    if isinstance(first, list):
        return _sample(list_of(first))
    if not isinstance(first, dict):
        raise unreadable(samples)
    sample = object_of(first)
    value = next((sample[key] for key in ("message", "content", "text") if sample.get(key) is not None), None)
    if value is None and "delta" in sample:
        raise unreadable(samples)  # a piece of a stream
    return EnvelopeContent(value or None, "assistant", ending=sample, sampled=True)


def _conversation(value: Json, keys: set[str], role: str) -> EnvelopeContent | None:
    if isinstance(value.get("messages"), (list, str)) and "prompt" not in keys:
        return EnvelopeContent(value["messages"], role, value.get("system"))
    if "contents" in keys:
        rules = ("system_instruction", "systemInstruction")
        given = (place[key] for place in (value, object_of(value.get("config"))) for key in rules if place.get(key))
        return EnvelopeContent(value["contents"], role, next(given, None))
    if "message" in keys and (isinstance(value["message"], dict) or keys <= {"message", *_SETTINGS}):
        return EnvelopeContent(value["message"], role)
    items = value.get("items")
    if isinstance(items, list) and all(kind_of(object_of(item)) for item in list_of(items)):
        return EnvelopeContent(items, role)
    return None


def _request(value: Json, keys: set[str], role: str) -> EnvelopeContent | None:
    others = keys - {"text"} if isinstance(value.get("text"), dict) else keys  # the format of the answer
    for key, rules in (("input", "instructions"), ("prompt", "system")):
        if key in keys and others <= {key, rules, *_SETTINGS}:
            return EnvelopeContent(value[key], role, value.get(rules))
    return None


def _response(value: Json, keys: set[str], role: str) -> EnvelopeContent | None:
    if "output" in keys:
        inner, is_response = value["output"], value.get("object") == "response"
        known = keys <= {"output", "input", "chat_history", "intermediate_steps", *_ANSWERED}
        if known or is_response or isinstance(inner, (list, dict)):
            reason = object_of(value.get("incomplete_details")).get("reason")
            ending = {"finish_reason": reason or (value.get("status") if is_response else None)}
            return EnvelopeContent(inner, role, ending=ending, failed=value.get("status") == "failed")
    if isinstance(value.get("completion"), str) and keys <= {"completion", *_ANSWERED}:
        return EnvelopeContent(value["completion"], role)
    if isinstance(value.get("response"), str) and "done" in keys:  # Ollama
        return EnvelopeContent(value["response"], role)
    return None


def _message(value: Json, keys: set[str], role: str) -> EnvelopeContent | None:
    """A message without a role, or the arguments of a function that was decorated, as LlamaIndex's."""
    inner = object_of(value.get("content"))
    if isinstance(inner.get("parts"), list):
        return EnvelopeContent({"role": role, **inner}, role, ending=value)
    if keys <= MESSAGE and not keys.isdisjoint((*CONTENTS, "tool_calls", "toolCalls", "refusal")):
        return EnvelopeContent({**value, "role": role}, role)
    if isinstance(value.get("text"), str) and keys <= {"text", *_ANSWERED}:
        return EnvelopeContent({**value, "content": value["text"], "role": role}, role)
    given = [value[key] for key in ("args", "kwargs") if value.get(key)] if keys <= {"args", "kwargs"} else []
    if len(given) == 1 or (given and isinstance(given[1], dict) and given[1].keys() <= _SETTINGS):
        return EnvelopeContent(given[0], role)
    return None
