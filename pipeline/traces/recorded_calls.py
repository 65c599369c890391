"""Tool calls with their results, by prompt. A result is never given to another user's question; where a prompt was
asked several times, the first trace by its id counts."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pipeline.core.conversation import TOOLS, calls_of, split

Message = Mapping[str, Any]


class Call(NamedTuple):
    """Ids, spaces and the order of arguments make no difference."""

    name: str
    arguments: str
    """Canonical JSON."""


class RecordedCall(NamedTuple):
    call: Call
    content: str


def calls_in(message: Message) -> list[tuple[Call, str]]:
    """The calls of an assistant's turn, in `tool_calls` or in its text, each with its id; none where one is invalid."""
    held = message.get("tool_calls")
    calls = (calls_of(held) or []) if held else split(message.get("content") or "")[1]
    if message["role"] != "assistant":
        return []
    named = [(each["function"], each.get("id", "")) for each in calls]
    return [(Call(function["name"], canonical(function["arguments"])), id) for function, id in named]


def canonical(arguments: Mapping[str, Any]) -> str:
    return json.dumps(arguments, sort_keys=True, ensure_ascii=False)


def conversation_key(messages: Sequence[Message]) -> str:
    """Identity of a conversation: roles, texts and calls, without ids and offered tools."""
    turns: list[list[Any]] = []
    for message in messages:
        calls, text = [list(call) for call, _ in calls_in(message)], message.get("content") or ""
        if message["role"] != TOOLS:
            turns.append([message["role"], split(text)[0] if calls else text, calls])
    return json.dumps(turns, ensure_ascii=False)


def recorded_calls(messages: Sequence[Message]) -> Iterator[RecordedCall]:
    """Calls of a conversation with their results: by id, else by order."""
    for place, message in enumerate(messages):
        calls = calls_in(message)
        results: list[Message] = []
        for later in messages[place + 1 :] if calls else ():
            if later["role"] != "tool":
                break
            results.append(later)
        by_id = {result.get("tool_call_id"): result for result in results if result.get("tool_call_id")}
        for number, (call, id) in enumerate(calls):
            result = by_id.get(id) if by_id else results[number] if number < len(results) else None
            if result is not None:
                yield RecordedCall(call, result.get("content") or "")


def results_by_prompt(
    rows: Iterable[tuple[str, Sequence[Message]]], prompts: Collection[str]
) -> dict[str, dict[Call, str]]:
    """Of each of these prompts (`conversation_key`) the results of the calls in conversations that begin with it.
    `rows`: the id of a trace and its messages."""
    first: dict[str, dict[Call, tuple[str, str]]] = {}
    for trace_id, messages in rows:
        if not any(message["role"] == "tool" for message in messages):
            continue
        for end, message in enumerate(messages):
            if not calls_in(message) or (key := conversation_key(messages[:end])) not in prompts:
                continue
            held = first.setdefault(key, {})
            for call, content in recorded_calls(messages[end:]):
                if call not in held or (trace_id, content) < held[call]:
                    held[call] = trace_id, content
    return {key: {call: content for call, (_, content) in held.items()} for key, held in first.items()}
