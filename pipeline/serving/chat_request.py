"""What a client asks of a slot, in OpenAI's form and as clients send it. A field is honoured, describes the request
alone, asks for what is the default anyway, or is refused by name."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline.core.conversation import from_request
from pipeline.serving.inference import Messages
from pipeline.serving.loaded import RequestRefused

DESCRIBING = frozenset(
    ("metadata", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "service_tier", "store", "user")
)
"""Fields that say whose a request is and how it is kept or billed: they change no answer."""
DEFAULTS: Mapping[str, Any] = {
    "frequency_penalty": 0, "logit_bias": {}, "logprobs": False, "modalities": ["text"], "n": 1,
    "parallel_tool_calls": True, "presence_penalty": 0, "response_format": {"type": "text"}, "top_logprobs": 0,
}  # fmt: skip
"""The one value of fields that this server does not go by otherwise."""


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid")

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class ChatRequest(BaseModel):
    """The fields that decide an answer."""

    model_config = ConfigDict(extra="forbid")

    model: str
    messages: list[_Message] = Field(min_length=1)
    tools: list[dict[str, Any]] | None = None
    """Definitions, as OpenAI has them."""
    tool_choice: Literal["auto", "none"] = "auto"
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=1.0, ge=0, le=100)
    top_p: float = Field(default=1.0, gt=0, le=1)
    stop: list[Annotated[str, Field(min_length=1)]] = []
    seed: int | None = None
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    """The usage is always sent, whatever they say: the gateway counts by it."""

    @property
    def conversation(self) -> Messages:
        tools = None if self.tool_choice == "none" else self.tools
        return from_request([message.model_dump() for message in self.messages], tools)


def read_request(body: bytes) -> ChatRequest:
    """Raises RequestRefused with the name of the field that is wrong or that this server does not go by."""
    try:
        fields = _given(json.loads(body))
        named = {n: v for n, v in fields.items() if n not in DESCRIBING and (n not in DEFAULTS or v != DEFAULTS[n])}
        if isinstance(named.get("stop"), str):
            named["stop"] = [named["stop"]]
        named["messages"] = [_message(_given(each)) for each in named.get("messages", [])]
        return ChatRequest.model_validate(named)
    except ValidationError as error:
        first = error.errors()[0]
        name, why = ".".join(map(str, first["loc"])) or "body", first["msg"]
        if first["type"] == "extra_forbidden":
            only = f" other than {json.dumps(DEFAULTS[name])}" if name in DEFAULTS else ""
            why = f"this server does not go by it{only}. Leave it out"
        raise RequestRefused(f"{name}: {why}") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise RequestRefused(f"the body is no request as JSON ({error})") from error


def _given(fields: Any) -> dict[str, Any]:
    """Without fields that are null: clients send all that they know."""
    if not isinstance(fields, dict):
        raise TypeError(f"{fields!r:.40} is no object")
    return {name: value for name, value in fields.items() if value is not None}


def _message(fields: dict[str, Any]) -> dict[str, Any]:
    """With its content as one text, and without what an answer's message holds of other things that are empty."""
    if fields.get("role") == "developer":
        fields["role"] = "system"
    if isinstance(content := fields.get("content"), list):
        parts = [_given(part) for part in content]
        if other := [part.get("type") for part in parts if part.get("type") != "text"]:
            raise RequestRefused(f"messages.content: a part of type {other[0]!r}. This server takes parts of type text")
        fields["content"] = "".join(part.get("text", "") for part in parts)
    return {name: value for name, value in fields.items() if name != "annotations" or value}
