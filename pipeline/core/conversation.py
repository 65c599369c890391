"""Conversations with tools, as every stage after the governed table holds them.

A conversation is a list of messages of text: the tools that a request offered are a message of role `tools` before all
others, with their definitions as JSON; an assistant's calls are JSON in `tool_calls` (`traces.rows.Message`). So a
prompt is one value with one digest, and no table merges the arguments of two tools into one struct. An answer is one
text: what was said and, after it, each call as `<tool_call>` JSON `</tool_call>`, which is how models of Qwen's and
Hermes' kind write it. Owns both forms, and how people and judges are shown them. Refuses to render: `chat_template`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

TOOLS = "tools"
"""Role of the message that holds the definitions."""
FIELDS = ("role", "content", "tool_calls", "tool_call_id", "name")
"""Of a message, in the order in which prompts have them."""
OPENS, CLOSES = "<tool_call>", "</tool_call>"
_BLOCK = re.compile(rf"{OPENS}\s*(\{{.*?\}})\s*{CLOSES}", re.DOTALL)

UNSHOWABLE = "unshowable_call"
"""Reason of a labelled row that holds a call which no model can be shown: see `is_whole`."""

Messages = list[dict[str, str]]


def conversation(row: Mapping[str, Any]) -> Messages:
    """What a row of the governed table was asked, with the tools that it offered, and no field without a value.

    Calls are numbered anew: providers draw their ids, and equal questions would differ by them.
    """
    offered = functions(row.get("tools"))
    head = [{"role": TOOLS, "content": json.dumps(offered, ensure_ascii=False)}] if offered else []
    return head + _numbered([message_of(message) for message in row["messages"]])


def _numbered(messages: Messages) -> Messages:
    ids: dict[str, str] = {}
    count = 0
    for message in messages:
        calls = calls_of(message["tool_calls"]) if "tool_calls" in message else None
        for call in calls or []:
            new = call_id(count)
            ids[call.get("id", new)] = new
            call["id"], count = new, count + 1
        if calls:
            message["tool_calls"] = _dumped([_as_text(call) for call in calls])
        if message.get("tool_call_id") in ids:
            message["tool_call_id"] = ids[message["tool_call_id"]]
    return messages


def _as_text(call: Mapping[str, Any]) -> dict[str, Any]:
    """A call with its arguments as JSON text."""
    return {**call, "function": {**call["function"], "arguments": _dumped(call["function"]["arguments"])}}


def message_of(message: Mapping[str, Any]) -> dict[str, str]:
    """A message as a prompt has it: role and content, and what else has a value."""
    rest = {name: message[name] for name in FIELDS[2:] if message.get(name)}
    return {"role": message["role"], "content": message["content"] or "", **rest}


def to_prompt(rows: Iterable[Mapping[str, Any]]) -> str:
    """A conversation as the labels hold it, canonical JSON; `rows` may have a null for what a message has not."""
    messages = [{name: value for name, value in message.items() if value is not None} for message in rows]
    return json.dumps(messages, ensure_ascii=False)


def functions(definitions: str | None) -> list[dict[str, Any]]:
    """The tools that a client answers, out of the definitions of a request; none where they are no JSON."""
    held = _parsed(definitions) if definitions else None
    tools = cast(list[Any], held) if isinstance(held, list) else []
    return [tool for tool in tools if isinstance(tool, dict) and isinstance(tool.get("function"), dict)]


def spoken(messages: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages without the definitions of tools, which nobody said."""
    return [message for message in messages if message["role"] != TOOLS]


def holds_tools(messages: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a conversation has definitions, calls or results of tools."""
    return any(message["role"] in (TOOLS, "tool") or message.get("tool_calls") for message in messages)


def is_whole(messages: Iterable[Mapping[str, Any]], tool_calls: str | None = None) -> bool:
    """Whether each call of a conversation, and of its answer, is one that a model can be shown: a function's, whose
    arguments are a JSON object. A provider's own call, and arguments that broke off, are not."""
    held = [text for message in messages if (text := message.get("tool_calls"))] + ([tool_calls] if tool_calls else [])
    return all(calls_of(text) is not None for text in held)


def calls_of(text: str) -> list[dict[str, Any]] | None:
    """The calls in JSON text of `tool_calls`, their arguments decoded; None where one is none that can be shown."""
    held = _parsed(text)
    if not isinstance(held, list):
        return None
    calls: list[dict[str, Any]] = []
    for each in cast(list[Any], held):
        function = each.get("function") if isinstance(each, dict) else None
        if not isinstance(function, dict) or each.get("type", "function") != "function":
            return None
        named = cast(dict[str, Any], function)
        arguments = named.get("arguments")
        arguments = _parsed(arguments) if isinstance(arguments, str) else arguments
        if not isinstance(named.get("name"), str) or not isinstance(arguments, dict):
            return None
        identity = {"id": each["id"]} if each.get("id") else {}
        calls.append({**identity, "type": "function", "function": {"name": named["name"], "arguments": arguments}})
    return calls


def answer_of(text: str, tool_calls: str | None) -> str:
    """An answer as one text. Calls that cannot be shown are left out: see `is_whole`."""
    calls = calls_of(tool_calls) if tool_calls else None
    return joined(text, calls) if calls else text


def joined(text: str, calls: Sequence[Mapping[str, Any]]) -> str:
    """What was said, and the calls after it (each with `function`, whose arguments are an object)."""
    blocks = [f"{OPENS}\n{_call_json(call['function'])}\n{CLOSES}" for call in calls]
    return "\n".join([text.rstrip("\n"), *blocks] if text.strip() else blocks)


def split(answer: str) -> tuple[str, list[dict[str, Any]]]:
    """An answer's text and its calls. One whose calls are no JSON, or have words after them, is a text."""
    if OPENS not in answer:
        return answer, []
    calls: list[dict[str, Any]] = []
    for match in _BLOCK.finditer(answer):
        held = _parsed(match[1])
        call = cast(dict[str, Any], held) if isinstance(held, dict) else {}
        name, arguments = call.get("name"), call.get("arguments", call.get("parameters"))
        if not isinstance(name, str) or not isinstance(arguments, dict):
            return answer, []
        calls.append({"type": "function", "function": {"name": name, "arguments": arguments}})
    before, _, after = answer.partition(OPENS)
    if not calls or _BLOCK.sub("", OPENS + after).strip():
        return answer, []
    return before.rstrip("\n"), calls


def as_message(answer: str) -> dict[str, Any]:
    """An answer as OpenAI's message: calls apart from the text, with an id each, arguments as JSON text."""
    text, calls = split(answer)
    if not calls:
        return {"role": "assistant", "content": answer}
    listed = [
        {
            **call,
            "id": call_id(n),
            "function": {**call["function"], "arguments": _dumped(call["function"]["arguments"])},
        }
        for n, call in enumerate(calls)
    ]
    return {"role": "assistant", "content": text or None, "tool_calls": listed}


def call_id(number: int) -> str:
    """The id of a call that has none: nine letters and digits, which every template takes."""
    return f"call{number:05d}"


def from_request(messages: Iterable[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> Messages:
    """A conversation out of a request as OpenAI's chat has it."""
    held = [{**m, "tool_calls": _dumped(m["tool_calls"])} if m.get("tool_calls") else m for m in messages]
    return conversation({"messages": held, "tools": _dumped(list(tools)) if tools else None})


def to_request(messages: Iterable[Mapping[str, str]]) -> dict[str, Any]:
    """The fields `messages` and, where tools were offered, `tools` of a request as OpenAI's chat has it."""
    sent: list[dict[str, Any]] = []
    tools: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == TOOLS:
            tools += functions(message["content"])
        elif "tool_calls" in message:
            sent.append({**message, "tool_calls": json.loads(message["tool_calls"])})
        else:
            sent.append(dict(message))
    return {"messages": sent, **({"tools": tools} if tools else {})}


def received(content: str | None, tool_calls: Sequence[Any]) -> str:
    """An answer out of a response's message. Calls that are not whole stay in it as a text that is no call; of a call
    without arguments some servers send an empty text for them."""
    held = _dumped([_with_arguments(call) for call in tool_calls])
    if calls_of(held) is not None:
        return answer_of(content or "", held)
    return "\n".join([*([content] if content else []), OPENS, held, CLOSES])


def _with_arguments(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or function.get("arguments") not in ("", None):
        return call
    return {**call, "function": {**function, "arguments": "{}"}}


def shown(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """A conversation for people and judges: role and content, calls as lines of text, definitions one a line.

    Results of calls that were made at once say which they are of.
    """
    lines: list[dict[str, str]] = []
    calls: list[dict[str, Any]] = []
    results = 0
    for message in messages:
        content = _shown(message)
        if message["role"] == "assistant":
            calls, results = calls_of(message.get("tool_calls") or "") or [], 0
        elif message["role"] == "tool":
            content, results = _of_call(message, content, calls, results), results + 1
        lines.append({"role": message["role"], "content": content})
    return lines


def _of_call(message: Mapping[str, Any], content: str, calls: Sequence[Mapping[str, Any]], place: int) -> str:
    """A result, with its call's number and name where there are several: by its id, else in their order."""
    by_id = {call.get("id"): number for number, call in enumerate(calls)}
    number = by_id.get(message.get("tool_call_id"), place)
    if len(calls) < 2 or number >= len(calls):
        return content
    return f"result of call {number + 1}, {calls[number]['function']['name']}:\n{content}"


def shown_answer(answer: str) -> str:
    """An answer for people and judges, its calls as lines `call: name({...})`."""
    text, calls = split(answer)
    return _with_lines(text, calls) if calls else answer


def _shown(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    if message["role"] == TOOLS:
        return "\n".join(_offer(tool["function"]) for tool in functions(content))
    if held := message.get("tool_calls"):
        calls = calls_of(held)
        return _with_lines(content, calls) if calls is not None else f"{content}\ncall: {held}".lstrip("\n")
    return shown_answer(content) if message["role"] == "assistant" else content


def _offer(function: Mapping[str, Any]) -> str:
    about = f": {function['description']}" if function.get("description") else ""
    return f"tool: {function.get('name')}({_dumped(function.get('parameters') or {})}){about}"


def _with_lines(text: str, calls: Sequence[Mapping[str, Any]]) -> str:
    lines = [f"call: {call['function']['name']}({_dumped(call['function']['arguments'])})" for call in calls]
    return "\n".join([text, *lines] if text.strip() else lines)


def _call_json(function: Mapping[str, Any]) -> str:
    return _dumped({"name": function["name"], "arguments": function["arguments"]})


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _parsed(text: Any) -> Any:
    try:
        return json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        return None
