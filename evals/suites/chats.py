"""What a line of a suite's file asks: a text, or a conversation as OpenAI's chat has it, with tools and calls."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from pipeline.core.conversation import calls_of, from_request, functions
from pipeline.recipe.suites import Columns
from pipeline.serving.inference import Messages

ROLES: Mapping[str, frozenset[str]] = {
    "system": frozenset(),
    "user": frozenset(),
    "assistant": frozenset({"tool_calls"}),
    "tool": frozenset({"tool_call_id", "name"}),
}
"""What a message may have beside role and content, by its role."""


def asked(row: Mapping[str, Any], where: Columns) -> Messages:
    """The conversation of a line. Raises ValueError for what is none."""
    prompt, messages, tools = (row.get(name) for name in (where.prompt, where.messages, where.tools))
    if (prompt is None) == (messages is None):
        names = " or ".join(repr(name) for name in (where.prompt, where.messages) if name)
        raise ValueError(f"it has {'neither' if prompt is None else 'both'} of {names}. Give one of them.")
    if prompt is not None:
        if not isinstance(prompt, str) or not prompt.strip():
            raise ValueError(f"its {where.prompt!r} is {str(prompt)[:40]!r}, and a prompt is a text.")
        messages = [{"role": "user", "content": prompt}]
    if not isinstance(messages, list) or not messages:
        raise ValueError(f"its {where.messages!r} is no list of messages.")
    listed = cast(list[Any], messages)
    waiting: set[str] = set()
    for message in listed:
        waiting = _checked(message, waiting)
    if listed[-1]["role"] not in ("user", "tool"):
        raise ValueError("the last message is the user's, or a tool's result: it is what the model answers.")
    return from_request(listed, _definitions(tools, where.tools))


def _checked(message: Any, called: set[str]) -> set[str]:
    """Ids of the calls so far, with those of this message."""
    if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
        raise ValueError("a message is an object with role and content, and nothing else but calls and their results.")
    held = cast(dict[str, Any], message)
    if held["role"] not in ROLES:
        raise ValueError(f"a message has the role {held['role']!r}: one of {', '.join(ROLES)}, with a text.")
    if unknown := sorted(held.keys() - {"role", "content"} - ROLES[held["role"]]):
        raise ValueError(f"a message of the role {held['role']!r} has {unknown[0]!r}, which nothing reads.")
    calls = held.get("tool_calls") or []
    if not isinstance(held["content"], str) and not (held["content"] is None and calls):
        raise ValueError(f"a message of the role {held['role']!r} has no text.")
    if calls and calls_of(json.dumps(calls)) is None:
        raise ValueError(
            'tool_calls is a list of {"id": ..., "type": "function", "function": {"name": ..., "arguments": ...}}, and '
            "arguments are a JSON object, as it is or as text."
        )
    if held["role"] == "tool" and held.get("tool_call_id") not in called:
        raise ValueError(
            f"a result has the tool_call_id {held.get('tool_call_id')!r}, and no call before it has that id."
        )
    return called | {call["id"] for call in calls if call.get("id")}


def _definitions(tools: Any, name: str) -> list[dict[str, Any]] | None:
    if tools is None:
        return None
    offered = functions(json.dumps(tools))
    named = all(isinstance(each["function"].get("name"), str) for each in offered)
    if not offered or len(offered) != len(tools) or not named:
        raise ValueError(
            f'its {name!r} is no list of definitions: {{"type": "function", "function": {{"name": ..., "parameters": '
            "{...}}}."
        )
    return offered
