"""Messages out of a logged value, for every source; of an output that holds several, the one answer that was served. A
shape that is not known is `unreadable`, never text."""

from typing import Any

import msgspec

from pipeline.traces.rows import Message
from pipeline.traces.sources.envelopes import CONTENTS, MESSAGE, is_data, opened
from pipeline.traces.sources.parts import (
    category,
    dumped,
    is_call,
    is_definition,
    is_part,
    kind_of,
    normal_calls,
    normal_tools,
    parts_of,
    result_of,
    result_text,
    undotted,
)
from pipeline.traces.sources.shapes import (
    NOTHING,
    Json,
    Unreadable,
    decoded,
    grouped,
    list_of,
    object_of,
    unreadable,
    value_of,
)
from pipeline.traces.sources.streams import response_of

ROLES, KINDS = ({name: role for role, own in grouped(table).items() for name in own} for table in ("roles", "classes"))
_ENDED = (("finish_reason", "message"), ("finish_reason", "text"), ("stop_reason", "content"))
"""What a choice of OpenAI's and a message of Anthropic's always state once they have ended, and their text."""

Turn = dict[str, Any]
"""A message whose tool calls are still a list."""


class Chat(msgspec.Struct):
    """Messages of a logged value, or what is `unreadable` of it: a fingerprint. `failed`: it is an error's."""

    messages: list[Message]
    has_payload: bool = False
    finish_reason: str | None = None
    unreadable: str | None = None
    failed: bool = False
    instructions: str = ""
    """The system message that an answer repeats: the request may not have been logged with it."""
    tools: list[Json] = []
    """The definitions of the tools that a request offered, in OpenAI's form."""


def parse(value: Any, role: str) -> Chat:
    """The messages of a logged input (role "user") or output (role "assistant"). Raises RecursionError."""
    reader = _Reader()
    try:
        turns = reader.messages(value, role)
        reader.chat.messages = [_settled(turn) for turn in turns]
    except Unreadable as odd:
        return Chat([], unreadable=f"{'output' if role == 'assistant' else 'input'}: {odd}")
    return reader.chat


def request(prompt: Any, system: Any, tools: Any) -> Chat:
    """The prompt of a request whose system message and tools may stand beside it."""
    asked = parse(prompt, "user")
    asked = joined(parse(system, "system"), asked) if system else asked
    asked.tools = asked.tools or normal_tools(decoded(tools))
    return asked


def torn(chat: Chat) -> bool:
    """Whether a prompt holds a tool's result without the call that it answers: a part of it was not recorded."""
    called = False
    for message in chat.messages:
        if message["role"] == "tool" and not called:
            return True
        called = "tool_calls" in message or (called and message["role"] == "tool")
    return False


def prompt(asked: Chat, answered: Chat) -> list[Message]:
    """The messages that the last answer was given to, with the instructions that only the answer repeats. Where several
    calls of a model are one span, the calls of tools and their results after the user's last message join them."""
    lacks = answered.instructions and asked.messages and asked.messages[0]["role"] != "system"
    rules: list[Message] = [{"role": "system", "content": answered.instructions}] if lacks else []
    users = [n for n, message in enumerate(answered.messages) if message["role"] == "user"]
    way = answered.messages[users[-1] + 1 if users else 0 : -1]
    on_the_way = way if any(message["role"] == "tool" or "tool_calls" in message for message in way) else []
    return [*rules, *asked.messages, *on_the_way]


def completion(chat: Chat) -> str:
    return chat.messages[-1]["content"] if chat.messages and chat.messages[-1]["role"] == "assistant" else ""


def has_answer(chat: Chat) -> bool:
    return bool(completion(chat) or tool_calls(chat))


def tool_calls(chat: Chat) -> str | None:
    """The calls of tools in the answer's last message, as JSON."""
    last = chat.messages[-1] if chat.messages else {}
    return last.get("tool_calls") if last.get("role") == "assistant" else None


def tools(*chats: Chat) -> str | None:
    """The definitions of the tools that the request offered, as JSON: each once, in their order."""
    offered = list(dict.fromkeys(dumped(tool) for chat in chats for tool in chat.tools))
    return f"[{','.join(offered)}]" if offered else None


def joined(first: Chat, second: Chat) -> Chat:
    both, reason = (first, second), second.finish_reason or first.finish_reason
    payload, failed = any(each.has_payload for each in both), any(each.failed for each in both)
    unreadable = first.unreadable or second.unreadable
    return Chat(first.messages + second.messages, payload, reason, unreadable, failed, tools=first.tools + second.tools)


def _settled(turn: Turn) -> Message:
    calls: Any = turn.pop("tool_calls", None)
    return {**turn, "tool_calls": dumped(normal_calls(calls))} if calls else turn


def of_output(value: Any) -> Chat:
    """An output whose several messages, if it has them, are choices or pieces."""
    logged = decoded(value)
    if (response := response_of(logged)) is not logged:
        return parse(response, "assistant")
    items = list_of(logged)
    if len(items) > 1 and all(object_of(item).get("role") == "assistant" for item in items):
        return served(items)
    return parse(value, "assistant")


def served(messages: list[Any]) -> Chat:
    """The one answer that the messages of an output hold: the first choice, or all where they are pieces of a turn.

    Each choice says why it ended. Of the chunks of a stream, as Google's ADK writes it, only the last one does, and it
    may repeat what the others have. Of other pieces of one turn at most one is a text; else the output is unreadable.
    """
    plain = [message for message in messages if isinstance(message, dict) and "type" not in message]
    if len(messages) < 2 or len(plain) < len(messages) or any("role" not in message for message in plain):
        return parse(messages, "assistant")
    *before, last = (message.get("finish_reason") for message in plain)
    streamed = bool(last) and all(reason == "" for reason in before)
    first = parse(messages[:1], "assistant")
    ended_in_call = "tool" in (first.finish_reason or "") and not tool_calls(first)
    if not streamed and (first.unreadable or (first.finish_reason and not ended_in_call)):
        return first
    whole = parse(messages, "assistant")
    if whole.unreadable or any(message["role"] != "assistant" for message in whole.messages):
        return whole
    *texts, text = [message["content"] for message in whole.messages]
    if not streamed and len([*filter(None, (*texts, text))]) > 1:
        return Chat([], unreadable="output: several answers")
    text = text if streamed and text == "".join(texts) else "".join((*texts, text))
    calls = [call for message in whole.messages for call in decoded(message.get("tool_calls", "[]"))]
    # A call comes as often as a piece of its arguments came: the last of an id is whole.
    by_id = {call.get("id", n): call for n, call in enumerate(calls)}
    turn = _settled({"role": "assistant", "content": text, "tool_calls": list(by_id.values())})
    return msgspec.structs.replace(whole, messages=[turn])


class _Reader:
    def __init__(self) -> None:
        self.chat = Chat([])
        self._called: set[str] = set()

    def messages(self, value: Any, role: str) -> list[Turn]:
        if isinstance(value, str):
            inner = value_of(value)
            # An answer in JSON is a text; elsewhere, and with a chat's keys, JSON is what somebody failed to unpack.
            is_json_answer = role == "assistant" and is_data(inner) and not isinstance(decoded(value.strip()), str)
            if inner != value and not is_json_answer:
                return self.messages(inner, role)
            return [{"role": role, "content": value}] if value else []
        if value is None or value == {} or (list_of(value) and all(each is None for each in value)):
            return []
        if isinstance(value, list):
            return self._of_list(list_of(value), role)
        if isinstance(value, dict):
            return self._of_dict(object_of(value), role)
        raise unreadable(value)

    def _of_list(self, items: list[Any], role: str) -> list[Turn]:
        if len(items) == 1 and not isinstance(items[0], dict):
            return self.messages(items[0], role)  # a batch of one
        if items and all(isinstance(item, dict) and is_part(item) for item in items) and not all(map(_is_item, items)):
            return self._message(role, {"content": items})
        turns: list[Turn] = []
        joins = False  # whether the turn before is of items, which are pieces of one turn
        for item in items:
            if not isinstance(item, dict):
                raise unreadable(items)
            item_turns = self._of_dict(object_of(item), role)
            piece = _is_item(item) or ("role" not in item and is_call(object_of(item)))
            if joins and piece and len(item_turns) == 1 and item_turns[0]["role"] == turns[-1]["role"] == "assistant":
                before, after = turns[-1], item_turns[0]
                calls = [*before.get("tool_calls", []), *after.get("tool_calls", [])]
                turns[-1] = {"role": "assistant", "content": before["content"] + after["content"]}
                turns[-1] |= {"tool_calls": calls} if calls else {}
            elif item_turns:
                turns += item_turns
                joins = piece
        return turns

    def _of_dict(self, value: Json, role: str) -> list[Turn]:
        value = undotted(value) if "message.role" in value else value
        if "from" in value and "value" in value:  # ShareGPT's message
            value = {"role": value["from"], "content": value["value"]}
        kind = kind_of(value)
        self._note_finish(value)
        if "role" in value and not isinstance(value["role"], str) and value["role"] is not None:
            raise unreadable(value)
        if isinstance(value.get("role"), str):
            return self._message(self._role(value, role), value)
        if value.get("lc") == 1:
            return self._of_langchain(value, role)
        if str(value.get("type")) in KINDS and ("content" in value or isinstance(value.get("data"), dict)):
            message_role = KINDS[str(value["type"])]
            return self._message(message_role, value if "content" in value else object_of(value["data"]))
        if is_definition(value):
            self.chat.tools += normal_tools(value)
            return []
        self.chat.has_payload |= kind == "image_generation_call"
        match category(value):
            case "call":
                return [self._calling("", [value])]
            case "result":
                return [*parts_of(value).results]
            case "silent" if kind:
                return []
            case "payload" | "text" if kind:
                return self._message(role, {"content": [value]})
            case _ if kind not in ("", "message", "LLMResult"):
                raise unreadable(value)
            case _:
                pass
        return self._of_envelope(value, role)

    def _role(self, value: Json, side: str) -> str:
        """A role that is a tool's name, as LangGraph's, is a tool's; one that is not known answers, or calls tools."""
        role_name = str(value["role"])
        role = ROLES.get(role_name.rpartition(".")[2].lower()) or KINDS.get(role_name)  # MessageRole.USER
        if role is None and (role_name in self._called or "tool_call_id" in value or "toolCallId" in value):
            role = "tool"
        content = next((value[key] for key in CONTENTS if value.get(key)), None)
        holds_calls = any(category(object_of(part)) == "call" for part in list_of(content))
        if role_name == "unknown" and (side == "assistant" or holds_calls):
            role = "assistant"
        if role is None:
            raise unreadable(value)
        return role

    def _message(self, role: str, value: Json) -> list[Turn]:
        """One turn of the text and the calls; before it, one of role `tool` for each result."""
        content = next((value[key] for key in CONTENTS if value.get(key)), None)
        if role == "tool":
            return self._returned(content, value)
        calls = _calls_of(value)
        if content is None and not calls and value.keys().isdisjoint(CONTENTS) and not value.keys() <= MESSAGE:
            raise unreadable(value)
        message_parts = parts_of(content)
        self.chat.has_payload |= message_parts.has_payload or any(value.get(key) for key in ("audio", "images"))
        places = (value, object_of(value.get("additional_kwargs")))
        refusals = (place["refusal"] for place in places if isinstance(place.get("refusal"), str))
        text = message_parts.text or next(refusals, "")
        if role == "assistant" and text.strip() in NOTHING:
            text = ""
        results: list[Turn] = [*message_parts.results]
        calls = calls or message_parts.calls
        if results and not text and not calls:
            return results
        if calls and text and role != "assistant":
            raise unreadable(value)  # only an assistant calls tools
        return [*results, self._calling(text, calls) if calls else {"role": role, "content": text}]

    def _returned(self, content: Any, value: Json) -> list[Turn]:
        if isinstance(content, dict) and is_definition(object_of(content)):
            self.chat.tools += normal_tools(content)
            return []
        if any(category(object_of(item)) == "result" for item in list_of(content)):
            return [*parts_of(content).results]
        named = value if value.get("name") or value.get("role") in ROLES else {**value, "name": value.get("role")}
        return [{**result_of(result_text(content), named, is_message=True)}]

    def _calling(self, text: str, calls: list[Any]) -> Turn:
        for call in calls:
            inner = object_of(call).get("function")
            named = inner if isinstance(inner, dict) else call
            if isinstance(named, dict):
                self._called.add(str(object_of(named).get("name", object_of(named).get("toolName"))))
        return {"role": "assistant", "content": text, "tool_calls": calls}

    def _of_langchain(self, value: Json, role: str) -> list[Turn]:
        name, inner = str(next(reversed(list_of(value.get("id"))), "")), value.get("kwargs")
        if not isinstance(inner, dict):
            raise unreadable(value)
        if name in KINDS:
            return self._message(KINDS[name], object_of(inner))
        if name in ("ChatPromptValue", "ChatGeneration", "StringPromptValue"):
            kept = next((inner[key] for key in ("messages", "message", "text") if key in inner), None)
            return self.messages(kept, role)
        raise unreadable(value)

    def _of_envelope(self, value: Json, role: str) -> list[Turn]:
        unwrapped = opened(value, role)
        self.chat.failed |= unwrapped.failed
        self._note_finish(unwrapped.ending or {})
        if value.get("object") == "response" and isinstance(value.get("instructions"), str):
            self.chat.instructions = value["instructions"]
        if role == "user":
            keys = ("config", "toolConfig", "tool_config", "kwargs")
            for place in (value, *(object_of(value.get(key)) for key in keys)):
                self.chat.tools += [t for key in ("tools", "functions") for t in normal_tools(place.get(key))]
        rules = object_of(unwrapped.rules)
        texts = rules["content"] if "content" in rules and not kind_of(rules) else unwrapped.rules
        instructions = self._message("system", {"content": texts}) if unwrapped.rules else []
        turns = self.messages(unwrapped.value, unwrapped.role)
        if unwrapped.sampled and not any(turn["content"] or turn.get("tool_calls") for turn in turns):
            reason = (self.chat.finish_reason or "").lower()
            self.chat.failed |= reason not in ("length", "max_tokens", "stop")  # it was filtered
        return instructions + turns

    def _note_finish(self, value: Json) -> None:
        keys = ("finish_reason", "finishReason", "stop_reason", "stopReason", "done_reason")
        places = (value, *(object_of(value.get(key)) for key in ("response_metadata", "generation_info")))
        reason = next((place[key] for place in places for key in keys if isinstance(place.get(key), str)), None)
        if not reason and value.get("type") == "message" and value.get("status") != "completed":
            reason = value.get("status")  # of an item of OpenAI's responses
        if isinstance(reason, str) and reason:
            self.chat.finish_reason = reason.rpartition(".")[2]  # FinishReason.STOP
        elif any(key in value and value[key] is None and kept in value for key, kept in _ENDED):
            self.chat.finish_reason = "unfinished"


def _calls_of(value: Json) -> list[Any]:
    for place in (value, object_of(value.get("additional_kwargs"))):
        for key in ("tool_calls", "toolCalls", "function_call"):
            if call_data := decoded(place.get(key)):
                return list_of(call_data) or [call_data]
    return []


def _is_item(value: Any) -> bool:
    """An item of OpenAI's responses: a piece of a turn."""
    kind = kind_of(object_of(value))
    return kind == "message" or (kind != "" and category(object_of(value)) in ("silent", "call", "result"))
