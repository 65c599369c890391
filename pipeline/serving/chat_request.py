"""What a client asks of a slot, by any of the APIs and as clients send it, in one form. A field is honoured, describes
the request alone, asks for what is the default anyway, or is refused by name."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline.core.apis import CALL, RESPONSES, RESULT, TEXT, Api, Turn, tools_of, turns_of
from pipeline.core.conversation import from_request
from pipeline.serving.inference import Messages
from pipeline.serving.loaded import RequestRefused

DESCRIBING = frozenset((
    "client_metadata", "metadata", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "service_tier",
    "store", "user",
))  # fmt: skip
"""Fields that say whose a request is and how it is kept or billed: they change no answer."""
DEFAULTS: Mapping[str, tuple[Any, ...]] = {
    "background": (False,), "frequency_penalty": (0,), "include": ([], ["reasoning.encrypted_content"]),
    "logit_bias": ({},), "logprobs": (False,), "mcp_servers": ([],), "modalities": (["text"],), "n": (1,),
    "presence_penalty": (0,), "response_format": ({"type": "text"},), "text": ({}, {"format": {"type": "text"}}),
    "thinking": ({"type": "disabled"},), "top_logprobs": (0,), "truncation": ("disabled",),
}  # fmt: skip
"""Values of fields that this server does not go by otherwise."""
_RENAMED = {"max_output_tokens": "max_completion_tokens", "stop_sequences": "stop"}
_THOUGHTS = ("reasoning", "reasoning_content", "thinking", "redacted_thinking")
"""Of earlier answers: fields and parts that templates leave out."""
_LEAVE_OUT = "this server does not go by it. Leave it out"


class ChatRequest(BaseModel):
    """The fields that decide an answer."""

    model_config = ConfigDict(extra="forbid")

    model: str
    messages: list[dict[str, Any]] = Field(min_length=1)
    """As OpenAI's chat completions have them, each with its content as one text."""
    tools: list[dict[str, Any]] = []
    """Definitions of functions, likewise."""
    tool_choice: Literal["auto", "none"] = "auto"
    parallel_tool_calls: bool = True
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=1.0, ge=0, le=100)
    top_p: float = Field(default=1.0, gt=0, le=1)
    stop: list[Annotated[str, Field(min_length=1)]] = []
    seed: int | None = None
    return_token_ids: bool = False
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    """The usage is always sent, whatever they say: the gateway counts by it."""

    @property
    def conversation(self) -> Messages:
        return from_request(self.messages, None if self.tool_choice == "none" else self.tools)


def read_request(api: Api, body: bytes) -> ChatRequest:
    """Raises RequestRefused with the name of the field that is wrong or that this server does not go by."""
    given: dict[str, Any] = {}
    try:
        given |= {str(name): value for name, value in json.loads(body).items() if value is not None}
        fields = {_RENAMED.get(name, name): value for name, value in given.items()}
        turns = turns_of(fields.pop(api.conversation, []), fields.pop(api.rules, None))
        named = {n: v for n, v in fields.items() if n not in DESCRIBING and v not in DEFAULTS.get(n, ())}
        choice, stop, tools = named.get("tool_choice"), named.get("stop"), tools_of(named.get("tools", []))
        if isinstance(choice, dict) and choice.get("type") in ("auto", "none"):  # Anthropic's
            one_call = {"parallel_tool_calls": False} if choice.get("disable_parallel_tool_use") else {}
            named |= {"tool_choice": choice["type"], **one_call}
        if isinstance(stop, str):
            named["stop"] = [stop]
        if other := [tool.get("type") for tool in tools if tool.get("type") != "function"]:
            raise RequestRefused(f"tools: one of type {other[0]!r}. This server takes functions")
        functions = ({key: tool[key] for key in tool if key != "type"} for tool in tools)
        named["tools"] = [{"type": "function", "function": function} for function in functions]
        named["messages"] = [message for turn in turns for message in _messages(api, turn)]
        if api is RESPONSES and given.get("store"):
            raise RequestRefused("store: this server keeps no response. Send false")
        return ChatRequest.model_validate(named)
    except ValidationError as error:
        first = error.errors()[0]
        own = str(first["loc"][0])
        name = next((name for name, ours in _RENAMED.items() if ours == own and name in given), own)
        name, why = api.conversation if name == "messages" else name, first["msg"]
        if first["type"] == "extra_forbidden":
            only = " or ".join(map(json.dumps, DEFAULTS.get(name, ())))
            why = _LEAVE_OUT.replace(". ", f" other than {only}. ") if only else _LEAVE_OUT
        raise RequestRefused(f"{name}: {why}") from error
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise RequestRefused(f"the body is no request as JSON ({error})") from error


def _messages(api: Api, turn: Turn) -> list[dict[str, Any]]:
    """The results of tools and the message of a turn; thoughts are left out."""
    role, text, calls, results = turn["role"], "", list[dict[str, Any]](), list[dict[str, Any]]()
    role = "system" if role == "developer" else role
    if role not in ("system", "user", "assistant", "tool"):
        raise RequestRefused(f"{api.conversation}.role: {role!r} is none of system, developer, user, assistant, tool")
    if strange := turn.keys() - {"role", "parts", "name", "phase", *_THOUGHTS}:
        raise RequestRefused(f"{api.conversation}.{min(strange)}: {_LEAVE_OUT}")
    named = {"name": turn["name"]} if "name" in turn else {}
    for part in turn["parts"]:
        kind = part.get("type")
        if kind == TEXT and isinstance(part.get("content"), str):
            text += part["content"]
        elif kind == CALL:
            function = {"name": part["name"], "arguments": part["arguments"]}
            calls.append({"id": part.get("id"), "type": "function", "function": function})
        elif kind == RESULT and isinstance(part["response"], str):
            own = {"name": part["name"]} if "name" in part else {}
            results.append({"role": "tool", "content": part["response"], "tool_call_id": part["id"], **own})
        elif kind not in _THOUGHTS:
            raise RequestRefused(f"{api.conversation}: a part of type {kind!r}. This server takes texts")
    if not text and not calls and turn["parts"]:
        return results
    return [*results, {"role": role, "content": text, **named, **({"tool_calls": calls} if calls else {})}]
