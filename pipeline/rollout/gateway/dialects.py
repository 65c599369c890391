"""What answers and their streams say in the APIs that clients speak, in one table."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from pipeline.core import apis
from pipeline.core.apis import Json, Turn, turns_of

_DECODE = msgspec.json.Decoder(Json).decode
DONE = (b"data: [DONE]", b"data:[DONE]")
_FINISH = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"} | {
    "max_output_tokens": "length", "model_context_window_exceeded": "length", "refusal": "content_filter"}  # fmt: skip
"""Why an answer ended, in the words of OpenAI's chat completions."""


class SlotReply(msgspec.Struct):
    """What a span says of an answer. `turns`: its messages in the form of core/apis.py, mostly one."""

    id: str = ""
    turns: list[Turn] = []
    finish_reason: str = ""
    input_tokens: int | None = None
    output_tokens: int | None = None
    error: bool = False
    tokens: dict[str, list[Any]] = {}
    """`input.token_ids`, `output.token_ids` and `output.logprobs`, where the server gave them."""


class Dialect(NamedTuple):
    """One API, as core/apis.py has it. `items`: decodes a conversation. `answer`: the field that an answer has and an
    error has not."""

    path: str
    conversation: str
    rules: str
    error: Callable[[int, str], Json]
    items: msgspec.json.Decoder[Any]
    answer: str
    read: Callable[[Sequence[Json]], SlotReply]
    """The reply that the events of a stream say, or a whole body, which is one of them."""
    ends: frozenset[str] = frozenset()
    """Types of the event that ends a stream; of chat completions it is [DONE]."""
    opens: frozenset[str] = frozenset()
    """Types of events that come before anything of the answer."""

    @property
    def is_count(self) -> bool:
        """Whether it counts tokens, and answers nothing."""
        return self.answer == "input_tokens"

    def failure(self, message: str) -> bytes:
        """The event that a stream breaks off with: clients raise what it says."""
        error = self.error(502, message)
        if not self.ends:
            return b"data: " + msgspec.json.encode(error) + b"\n\n"
        return b"event: error\ndata: " + msgspec.json.encode({"type": "error", "message": message, **error}) + b"\n\n"

    def ended(self, event: bytes) -> bool:
        """Whether an event is a stream's last."""
        return type_of(event) in self.ends if self.ends else event.rpartition(b"\n")[2] in DONE


def type_of(event: bytes) -> str:
    """Of an event's data; "" where it has none."""
    return next((str(body.get("type", "")) for body in _bodies(event)), "")


def reply_of(dialect: Dialect, raw: Sequence[bytes]) -> SlotReply:
    """The reply in a body, or in the pieces of a stream (`raw` holds several events then). What is no JSON object is
    skipped, and what is of another shape says nothing."""
    bodies = _bodies(b"".join(raw))
    try:
        reply = dialect.read(bodies)
        reply.finish_reason = _FINISH.get(reply.finish_reason, reply.finish_reason)
    except (AttributeError, LookupError, TypeError, ValueError):  # the shapes are the server's
        reply = SlotReply()
    reply.error = reply.error or any(body.get("error") or body.get("type") == "error" for body in bodies)
    return reply


def _bodies(joined: bytes) -> list[Json]:
    is_stream = joined.lstrip().startswith((b"data:", b":", b"event:", b"id:"))
    lines = (line.strip() for line in joined.split(b"\n")) if is_stream else (b"data:" + joined,)
    bodies: list[Json] = []
    for line in lines:
        if not line.startswith(b"data:") or line in DONE:
            continue
        try:
            bodies.append(_DECODE(line[5:]))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    return bodies


def _usage(reply: SlotReply, usage: Json | None) -> None:
    if usage:
        reply.input_tokens = usage.get("prompt_tokens", usage.get("input_tokens"))
        reply.output_tokens = usage.get("completion_tokens", usage.get("output_tokens"))


def _chat(bodies: Sequence[Json]) -> SlotReply:
    reply, deltas, message = SlotReply(), list[Json](), None
    for body in bodies:
        reply.id = reply.id or body.get("id") or ""
        _usage(reply, body.get("usage"))
        _keep(reply, "input.token_ids", body.get("prompt_token_ids"))
        for choice in body.get("choices") or []:
            if choice.get("index", 0) == 0:
                deltas.append(choice.get("delta") or {})
                message = choice.get("message") or message
                reply.finish_reason = choice.get("finish_reason") or reply.finish_reason
                _keep(reply, "output.token_ids", choice.get("token_ids"))
                drawn = (choice.get("logprobs") or {}).get("content")
                _keep(reply, "output.logprobs", [each["logprob"] for each in drawn or []])
    if deltas:
        reply.turns = turns_of([message or _message(deltas)])
    return reply


def _keep(reply: SlotReply, name: str, values: list[Any] | None) -> None:
    if values:
        reply.tokens[name] = [*reply.tokens.get(name, []), *values]


def _message(deltas: Sequence[Json]) -> Json:
    """The message that a stream spells."""
    message: Json = {"role": "assistant", "content": ""}
    calls: dict[int, Json] = {}
    for delta in deltas:
        for key, value in delta.items():
            if isinstance(value, str) and key != "role":
                message[key] = message.get(key, "") + value
        parts = delta.get("tool_calls")
        for part in parts if isinstance(parts, list) else ():
            call = calls.setdefault(part.get("index", 0), {"type": "function", "function": {"arguments": ""}})
            function = part.get("function") or {}
            call["function"]["arguments"] += function.get("arguments") or ""
            call["function"] |= {"name": function["name"]} if function.get("name") else {}
            call |= {"id": part["id"]} if part.get("id") else {}
    return message | ({"tool_calls": [calls[index] for index in sorted(calls)]} if calls else {})


def _responses(bodies: Sequence[Json]) -> SlotReply:
    """A stream's last event has the response whole; where it broke off, the items that were done."""
    response = next((body.get("response") or body for body in reversed(bodies) if body.get("type") != "error"), {})
    done = [body["item"] for body in bodies if body.get("type") == "response.output_item.done"]
    output = response.get("output") or done
    why = (response.get("incomplete_details") or {}).get("reason")
    calls = any(item.get("type") == "function_call" for item in output)
    finish = why or {"completed": "tool_calls" if calls else "stop"}.get(str(response.get("status")), "")
    reply = SlotReply(response.get("id") or "", finish_reason=finish)
    reply.error = bool(response.get("error")) or response.get("status") == "failed"
    _usage(reply, response.get("usage"))
    for part in (part for item in output for part in item.get("content") or []):
        _keep(reply, "output.logprobs", [each["logprob"] for each in part.get("logprobs") or []])
    reply.turns = turns_of(output)
    return reply


def _messages(bodies: Sequence[Json]) -> SlotReply:
    message, blocks = dict[str, Any](), dict[int, Json]()
    for body in bodies:
        match body.get("type"):
            case "message" | "message_start":
                message |= body.get("message") or body
            case "content_block_start":
                blocks[body["index"]] = {**body["content_block"]}
            case "content_block_delta":
                block = blocks[body["index"]]
                pieces = {key: block.get(key, "") + piece for key, piece in body["delta"].items() if key != "type"}
                block |= pieces | ({"input": pieces["partial_json"]} if "partial_json" in pieces else {})
            case "message_delta":
                message |= body["delta"] | {"usage": (message.get("usage") or {}) | (body.get("usage") or {})}
            case _:
                pass
    content = [blocks[n] for n in sorted(blocks)] or message.get("content") or []
    reply = SlotReply(message.get("id") or "", finish_reason=message.get("stop_reason") or "")
    _usage(reply, message.get("usage"))
    if message:
        reply.turns = turns_of([{"role": "assistant", "content": content}])
    return reply


_LISTED = msgspec.json.Decoder(list[msgspec.defstruct("_Message", [("role", str)])])
_ITEMS = msgspec.json.Decoder(str | list[msgspec.defstruct("_Item", [])])
CHAT = Dialect(*apis.CHAT, _LISTED, "choices", _chat)
RESPONSES = Dialect(*apis.RESPONSES, _ITEMS, "output", _responses)._replace(
    ends=frozenset(("response.completed", "response.incomplete", "response.failed", "error")),
    opens=frozenset(("response.created", "response.queued", "response.in_progress")),
)
MESSAGES = Dialect(*apis.MESSAGES, _LISTED, "content", _messages)._replace(
    ends=frozenset(("message_stop", "error")), opens=frozenset(("message_start", "ping"))
)
COUNT = Dialect(*apis.COUNT, _LISTED, "input_tokens", _messages)
DIALECTS = {f"/v1{dialect.path}": dialect for dialect in (CHAT, RESPONSES, MESSAGES, COUNT)}
"""By the path of a request."""
