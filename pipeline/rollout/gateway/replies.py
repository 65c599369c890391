"""A slot's reply: one JSON body, or the events of a stream put together to what that body would have been."""

from typing import Any

import msgspec

DONE = (b"data: [DONE]", b"data:[DONE]")


class Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class ReplyChoice(msgspec.Struct):
    message: msgspec.Raw = msgspec.Raw()
    text: str = ""
    finish_reason: str | None = None
    index: int = 0
    delta: dict[str, Any] | None = None


class ReplyBody(msgspec.Struct):
    id: str | None = None
    choices: list[ReplyChoice] | None = None
    usage: Usage | None = None
    error: msgspec.Raw = msgspec.Raw()

    @property
    def is_error(self) -> bool:
        return bytes(self.error) not in (b"", b"null")


class SlotReply(msgspec.Struct):
    """What a span says of an answer. `message`: JSON of the first choice's message."""

    id: str = ""
    message: str = ""
    finish_reason: str = ""
    input_tokens: int | None = None
    output_tokens: int | None = None
    error: bool = False


decode_body = msgspec.json.Decoder(ReplyBody).decode


def reply_of(path: str, raw: list[bytes]) -> SlotReply:
    """The reply in a body, or in the pieces of a stream (`raw` holds several events then)."""
    joined = b"".join(raw)
    events = _events(joined) if joined.lstrip().startswith((b"data:", b":", b"event:", b"id:")) else [joined]
    reply, turn = SlotReply(), _FirstChoice(path)
    for event in events:
        try:
            body = decode_body(event)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        reply.id = reply.id or body.id or ""
        reply.error = reply.error or body.is_error
        if body.usage is not None:
            reply.input_tokens, reply.output_tokens = body.usage.prompt_tokens, body.usage.completion_tokens
        for choice in body.choices or []:
            if choice.index == 0:
                turn.take(choice)
                reply.finish_reason = choice.finish_reason or reply.finish_reason
    reply.message = turn.message()
    return reply


def _events(stream: bytes) -> list[bytes]:
    lines = (line.strip() for line in stream.split(b"\n"))
    return [line[5:].strip() for line in lines if line.startswith(b"data:") and line not in DONE]


class _FirstChoice:
    def __init__(self, path: str) -> None:
        self._completion = path == "completions"
        self._whole: bytes | None = None
        self._pieces: dict[str, list[str]] = {}
        self._calls: dict[int, dict[str, Any]] = {}
        self._any = False

    def take(self, choice: ReplyChoice) -> None:
        self._any = True
        if bytes(choice.message) not in (b"", b"null"):
            self._whole = bytes(choice.message)
        elif self._completion:
            self._pieces.setdefault("content", []).append(choice.text)
        for key, value in (choice.delta or {}).items():
            if key == "tool_calls" and isinstance(value, list):
                self._call(value)
            elif isinstance(value, str) and key != "role":
                self._pieces.setdefault(key, []).append(value)

    def _call(self, deltas: list[Any]) -> None:
        for delta in deltas:
            call = self._calls.setdefault(delta.get("index", 0), {"type": "function", "function": {"arguments": ""}})
            function = delta.get("function") or {}
            call["function"]["arguments"] += function.get("arguments") or ""
            call["function"] |= {"name": function["name"]} if function.get("name") else {}
            call |= {"id": delta["id"]} if delta.get("id") else {}

    def message(self) -> str:
        if self._whole is not None or not self._any:
            return (self._whole or b"").decode()
        fields: dict[str, Any] = {"role": "assistant", "content": ""}
        fields |= {key: "".join(pieces) for key, pieces in self._pieces.items()}
        if self._calls:
            fields["tool_calls"] = [self._calls[index] for index in sorted(self._calls)]
        return msgspec.json.encode(fields).decode()
