"""The one response that the events of a stream make, where a log keeps them as they came, in a list or as the text of
server-sent events: Anthropic's, also as Bedrock logs them, and OpenAI's. One that broke off has no reason to end."""

from typing import Any

from pipeline.traces.sources.shapes import Json, decoded, list_of, object_of

_PIECES = {key: key for key in ("content", "refusal", "arguments", "text", "thinking")} | {"partial_json": "input"}
"""Texts that come in pieces, and the keys of the whole ones."""


def response_of(value: Any) -> Any:
    """The response, or the value itself where it is no stream."""
    items = list_of(value)
    if isinstance(value, str) and value.startswith(("data:", "event:")):
        data = (line.removeprefix("data:").strip() for line in value.splitlines() if line.startswith("data:"))
        items = [decoded(each) for each in data if each != "[DONE]"]
    events = [object_of(each) for each in items]
    first = events[0] if events and all(events) else {}
    if first.get("type") == "message_start":
        return _message(events)
    if first.get("object") == "chat.completion.chunk":
        return _completion(events)
    if str(first.get("type")).startswith("response."):  # of OpenAI's responses some events hold all that there was
        return next((each["response"] for each in reversed(events) if "response" in each), value)
    return value


def _message(events: list[Json]) -> Json:
    blocks = dict[Any, Json]()
    for event in events:
        if event.get("type") == "error":
            return {"error": event}
        block = blocks.setdefault(event.get("index"), {**object_of(event.get("content_block"))})
        _grow(block, event.get("delta"))
    ended = blocks.pop(None).get("stop_reason")  # of the message itself, which has no place among its blocks
    return {**object_of(events[0].get("message")), "content": [*blocks.values()], "stop_reason": ended}


def _completion(chunks: list[Json]) -> Json:
    """Of several choices the first was served."""
    message, ended = Json(role="assistant"), None
    for choice in (object_of(each) for chunk in chunks for each in list_of(chunk.get("choices"))):
        if not choice.get("index"):
            _grow(message, choice.get("delta"))
            ended = choice.get("finish_reason") or ended
    message["tool_calls"] = [*object_of(message.get("tool_calls")).values()]
    return {"choices": [{"message": message, "finish_reason": ended}]}


def _grow(held: Json, piece: Any) -> None:
    for key, each in object_of(piece).items():
        if key in _PIECES and isinstance(each, str):
            held[_PIECES[key]] = (held.get(_PIECES[key]) or "") + each
        elif isinstance(each, list):  # calls of tools, by their places
            for item in map(object_of, list_of(each)):
                _grow(held.setdefault(key, {}).setdefault(item.get("index"), {}), item)
        elif isinstance(each, dict):
            _grow(held.setdefault(key, {}), each)
        elif each is not None:
            held.setdefault(key, each)
