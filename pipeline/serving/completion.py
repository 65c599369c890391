"""A server's reply to one chat completion: one that leaves open what was answered, how it ended or how many tokens it
took is refused."""

import json
from typing import Any, Literal, NamedTuple

from pipeline.core.conversation import received

SHOWN_CHARS = 300
"""Of a server's words, in an error message."""


class Completion(NamedTuple):
    """One answer, the model that the server says it is of, and the server's fingerprint, empty where it has none."""

    model: str
    text: str
    tokens: int
    prompt_tokens: int
    stop: Literal["stop", "length"]
    fingerprint: str


def read_completion(body: bytes) -> Completion:
    """Raises ValueError with what is wrong with the reply."""
    try:
        reply = strict_json(body.decode())
    except ValueError as error:
        raise ValueError(f"a body that is not JSON ({error}): {shown(body)}") from None
    if not isinstance(reply, dict) or "error" in reply:
        raise ValueError(f"HTTP 200 with the body of an error: {shown(body)}")
    choices = reply.get("choices")
    if not isinstance(choices, list) or len(choices) != 1:
        number = len(choices) if isinstance(choices, list) else "no list of"
        raise ValueError(f"{number} choices where one was asked for")
    match choices[0]:
        case {"message": {"tool_calls": [_, *_]}, "finish_reason": "tool_calls" | "stop"} | {
            "message": {"content": str()},
            "finish_reason": "stop" | "length",
        } if isinstance(choices[0]["message"].get("content"), str | None):
            message, finish = choices[0]["message"], choices[0]["finish_reason"]
            prompt_tokens, tokens = _usage(reply.get("usage"))
            fingerprint = reply.get("system_fingerprint")
            return Completion(
                model=str(reply.get("model")),
                text=received(message.get("content"), message.get("tool_calls") or []),
                tokens=tokens,
                prompt_tokens=prompt_tokens,
                stop="length" if finish == "length" else "stop",
                fingerprint=fingerprint if isinstance(fingerprint, str) else "",
            )
        case {"message": {"content": str()}, **rest}:
            raise ValueError(f"an answer whose finish_reason is {rest.get('finish_reason')!r}, not stop or length")
        case _:
            raise ValueError("a choice without a text")


def strict_json(text: str) -> Any:
    """The value of a JSON text as RFC 8259 has it. Raises ValueError."""
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except RecursionError as error:  # a text of opening brackets
        raise ValueError("nested too deeply") from error


def shown(body: bytes) -> str:
    """A server's message on one line, cut; of an error as OpenAI's API has it, its words alone."""
    text = body.decode(errors="replace")
    try:
        reply = strict_json(text)
    except ValueError:
        reply = None
    match reply:
        case {"error": {"message": str(message)}} | {"error": str(message)} | {"message": str(message)}:
            text = message
        case _:
            pass
    text = " ".join(text.split())
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}..."


def _usage(usage: object) -> tuple[int, int]:
    """Tokens of the prompt and of the answer."""
    match usage:
        case {"prompt_tokens": int(prompt), "completion_tokens": int(tokens)} if (
            not isinstance(prompt, bool) and not isinstance(tokens, bool) and prompt > 0 and tokens >= 0
        ):
            return prompt, tokens
        case _:
            raise ValueError("no usage: how many tokens prompt and answer took is not stated")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key stands twice")
    return fields


def _constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
