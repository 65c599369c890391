"""The one answer of an output that holds several messages: choices of a model, or pieces of one turn."""

from __future__ import annotations

from typing import Any

import msgspec

from pipeline.traces.sources import chat
from pipeline.traces.sources.shapes import decoded, list_of, object_of


def of_output(value: Any) -> chat.Chat:
    """An output whose several messages, if it has them, are choices or pieces."""
    items = list_of(decoded(value))
    if len(items) > 1 and all(object_of(item).get("role") == "assistant" for item in items):
        return served(items)
    return chat.parse(value, "assistant")


def served(messages: list[Any]) -> chat.Chat:
    """The one answer that the messages of an output hold: the first choice, or all where they are pieces of a turn.

    Each choice says why it ended; pieces of one turn do not, and at most one of them is a text, unless they are the
    chunks of a stream. Anything else that has several answers is unreadable, for nobody can tell which was served.
    """
    plain = [message for message in messages if isinstance(message, dict) and "type" not in message]
    if len(messages) < 2 or len(plain) < len(messages) or any("role" not in message for message in plain):
        return chat.parse(messages, "assistant")
    if all(message.get("finish_reason") == "" for message in plain[:-1]) and plain[-1].get("finish_reason"):
        return _streamed(messages)
    first = chat.parse(messages[:1], "assistant")
    ended_in_call = "tool" in (first.finish_reason or "") and not chat.tool_calls(first)
    if first.unreadable or (first.finish_reason and not ended_in_call):
        return first
    whole = chat.parse(messages, "assistant")
    if whole.unreadable or any(message["role"] != "assistant" for message in whole.messages):
        return whole
    texts = [message["content"] for message in whole.messages if message["content"]]
    if len(texts) > 1:
        return chat.Chat([], unreadable="output: several answers")
    return _merged(whole, "".join(texts), _calls(whole))


def _streamed(chunks: list[Any]) -> chat.Chat:
    """The answer of a stream, of which only the last chunk says why it ended.

    Google's ADK writes chunks so. That of some models repeats in the last one what the others have, and a call as often
    as a piece of its arguments came: the last of an id is whole.
    """
    whole = chat.parse(chunks, "assistant")
    if whole.unreadable or any(message["role"] != "assistant" for message in whole.messages):
        return whole
    *before, last = [message["content"] for message in whole.messages]
    calls = {call.get("id", n): call for n, call in enumerate(_calls(whole))}
    return _merged(whole, last if last == "".join(before) else "".join((*before, last)), list(calls.values()))


def _calls(whole: chat.Chat) -> list[Any]:
    return [call for message in whole.messages for call in decoded(message.get("tool_calls", "[]"))]


def _merged(whole: chat.Chat, content: str, calls: list[Any]) -> chat.Chat:
    turn = chat.settled({"role": "assistant", "content": content, "tool_calls": calls})
    return msgspec.structs.replace(whole, messages=[turn])
