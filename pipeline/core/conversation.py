"""Conversations with tools as lists of messages of text: definitions in a message of role `tools`, calls as JSON text.
An answer is one text: the words and, after them, each call as `<tool_call>` JSON `</tool_call>` (Qwen, Hermes)."""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, cast

TOOLS = "tools"
"""Role of the message that holds the definitions."""
FIELDS = ("role", "content", "tool_calls", "tool_call_id", "name")
"""Of a message, in the order in which prompts have them."""
OPENS, CLOSES = "<tool_call>", "</tool_call>"
_BLOCK = re.compile(rf"{OPENS}\s*(\{{.*?\}})\s*{CLOSES}", re.DOTALL)

_MARK, _TAG = "[TOOL_CALLS]", "<|python_tag|>"
_BETWEEN = re.compile(rf"(?:[\s;]|{re.escape(_MARK)})*")
_NAMED = re.compile(r"([\w.-]+)(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*(?=\{)")
_decode = json.JSONDecoder().raw_decode

UNSHOWABLE = "unshowable_call"
"""Reason of a labelled row with a call that cannot be shown to a model: see `is_whole`."""

Messages = list[dict[str, str]]


def conversation(row: Mapping[str, Any]) -> Messages:
    """The messages of a row of the governed table, with the tools that it offered. Calls get new ids,
    so that equal questions are equal."""
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
            message["tool_calls"] = _dumped([_with_text(call) for call in calls])
        if message.get("tool_call_id") in ids:
            message["tool_call_id"] = ids[message["tool_call_id"]]
    return messages


def _with_text(call: Mapping[str, Any]) -> dict[str, Any]:
    """A call with its arguments as JSON text."""
    return {**call, "function": {**call["function"], "arguments": _dumped(call["function"]["arguments"])}}


def message_of(message: Mapping[str, Any]) -> dict[str, str]:
    """A message of a prompt, without fields that have no value."""
    rest = {name: message[name] for name in FIELDS[2:] if message.get(name)}
    return {"role": message["role"], "content": message["content"] or "", **rest}


def to_prompt(rows: Iterable[Mapping[str, Any]]) -> str:
    """A conversation as canonical JSON; fields that are null are left out."""
    messages = [{name: value for name, value in message.items() if value is not None} for message in rows]
    return json.dumps(messages, ensure_ascii=False)


def functions(definitions: str | None) -> list[dict[str, Any]]:
    """The functions among the definitions of a request; empty where they are no JSON."""
    held = _parsed(definitions) if definitions else None
    tools = cast(list[Any], held) if isinstance(held, list) else []
    return [tool for tool in tools if isinstance(tool, dict) and isinstance(tool.get("function"), dict)]


def spoken(messages: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [message for message in messages if message["role"] != TOOLS]


def holds_tools(messages: Iterable[Mapping[str, Any]]) -> bool:
    return any(message["role"] in (TOOLS, "tool") or message.get("tool_calls") for message in messages)


def is_whole(messages: Iterable[Mapping[str, Any]], tool_calls: str | None = None) -> bool:
    """Whether each call of a conversation and its answer is a function's whose arguments are a JSON object."""
    held = [text for message in messages if (text := message.get("tool_calls"))] + ([tool_calls] if tool_calls else [])
    return all(calls_of(text) is not None for text in held)


def calls_of(text: str) -> list[dict[str, Any]] | None:
    """The calls in JSON text of `tool_calls`, their arguments decoded; None where one cannot be shown (`is_whole`)."""
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
    """An answer as one text, without calls that cannot be shown."""
    calls = calls_of(tool_calls) if tool_calls else None
    return joined(text, calls) if calls else text


def joined(text: str, calls: Sequence[Mapping[str, Any]]) -> str:
    """The text, and the calls after it (each with `function`, whose arguments are an object)."""
    functions = [{name: call["function"][name] for name in ("name", "arguments")} for call in calls]
    blocks = [f"{OPENS}\n{_dumped(function)}\n{CLOSES}" for function in functions]
    return "\n".join([text.rstrip("\n"), *blocks] if text.strip() else blocks)


def split(answer: str) -> tuple[str, list[dict[str, Any]]]:
    """An answer's text and its calls; all is text where the calls are no JSON or words follow them."""
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


def as_message(answer: str, most: int | None = None, first: int = 0) -> dict[str, Any]:
    """An answer as OpenAI's message: calls apart from the text, `most` of them, with ids from the number `first`, their
    arguments as JSON text."""
    text, calls = split(answer)
    if not calls:
        return {"role": "assistant", "content": answer}
    listed = [{**_with_text(call), "id": call_id(first + n), "index": n} for n, call in enumerate(calls[:most])]
    return {"role": "assistant", "content": text or None, "tool_calls": listed}


def call_id(number: int) -> str:
    """The id of a call without one: nine letters and digits, which every template takes."""
    return f"call{number:05d}"


def from_request(messages: Iterable[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> Messages:
    """The conversation of a request in OpenAI's form."""
    held = [{**m, "tool_calls": _dumped(m["tool_calls"])} if m.get("tool_calls") else m for m in messages]
    return conversation({"messages": held, "tools": _dumped(list(tools)) if tools else None})


def to_request(messages: Iterable[Mapping[str, str]]) -> dict[str, Any]:
    """The fields `messages` and `tools` of a request in OpenAI's form."""
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
    """The answer of a response's message. Calls that are not whole stay in it as text. Some servers send an empty text
    for a call without arguments."""
    for call in tool_calls:
        if isinstance(call, dict) and isinstance(function := call.get("function"), dict):
            function["arguments"] = function.get("arguments") or "{}"
    held = _dumped(tool_calls)
    if calls_of(held) is not None:
        return answer_of(content or "", held)
    return "\n".join([*([content] if content else []), OPENS, held, CLOSES])


def shown(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """A conversation for people and judges: calls and definitions as lines; results name their call where several were
    made at once."""
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
    """A result, with its call's number and name where there are several: by id, else by order."""
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
        return "\n".join(
            f"tool: {f.get('name')}({_dumped(f.get('parameters') or {})})"
            + (f": {f['description']}" if f.get("description") else "")
            for f in (tool["function"] for tool in functions(content))
        )
    if held := message.get("tool_calls"):
        calls = calls_of(held)
        return _with_lines(content, calls) if calls is not None else f"{content}\ncall: {held}".lstrip("\n")
    return shown_answer(content) if message["role"] == "assistant" else content


def _with_lines(text: str, calls: Sequence[Mapping[str, Any]]) -> str:
    lines = [f"call: {call['function']['name']}({_dumped(call['function']['arguments'])})" for call in calls]
    return "\n".join([text, *lines] if text.strip() else lines)


def in_one_form(text: str, messages: Iterable[Mapping[str, Any]]) -> str:
    """A drawn answer with its calls in the one form, also those of Llama 3 (`{"name", "parameters"}`) and Mistral
    (`[TOOL_CALLS]`), as vLLM's parsers read them; unchanged where it has none of a tool that `messages` offer."""
    names = {tool["function"].get("name") for m in messages if m["role"] == TOOLS for tool in functions(m["content"])}
    if not names or OPENS in text:
        return text
    if calls := _marked_calls(text.strip().removeprefix(_TAG), names):
        return joined("", calls)
    words, _, marked = text.partition(_MARK)
    calls = _marked_calls(marked, names)
    return joined(words, calls) if calls else text


def _marked_calls(text: str, names: Collection[str]) -> list[dict[str, Any]]:
    """The calls of a text of calls alone; none where there is anything else in it."""
    calls: list[dict[str, Any]] = []
    at = 0
    while (at := _BETWEEN.match(text, at).end()) < len(text):  # pyright: ignore[reportOptionalMemberAccess]
        named = _NAMED.match(text, at)
        try:
            value, at = _decode(text, named.end() if named else at)
        except (ValueError, RecursionError):
            return []
        held = [{"name": named[1], "arguments": value}] if named else value if isinstance(value, list) else [value]
        for each in cast(list[Any], held):
            call = cast(dict[str, Any], each) if isinstance(each, dict) else {}
            arguments = call.get("arguments", call.get("parameters"))
            if call.get("name") not in names or not isinstance(arguments, dict):
                return []
            calls.append({"type": "function", "function": {"name": call["name"], "arguments": arguments}})
    return calls


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _parsed(text: Any) -> Any:
    try:
        return json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        return None
