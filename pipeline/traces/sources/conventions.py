"""What spans say of a call beside its text (whether a model was called, who asked, who answered), in the attributes of
OpenTelemetry GenAI, OpenInference, Langfuse's SDKs, Vercel's AI SDK and traceloop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.traces.sources.shapes import Json, decoded, object_of

MODEL_CALLS = frozenset({"chat", "text_completion", "generate_content"})
"""`gen_ai.operation.name` of a call; other operations (embeddings, execute_tool, invoke_agent) hold no answer."""
MODELS = ("gen_ai.response.model", "gen_ai.request.model", "llm.model_name", "langfuse.observation.model.name")
USERS = (
    *("user.id", "enduser.id", "langfuse.user.id", "ai.telemetry.metadata.userId", "ai.telemetry.metadata.user_id"),
    "traceloop.association.properties.user_id",
)
SESSIONS = (
    *("session.id", "gen_ai.conversation.id", "langfuse.session.id", "ai.telemetry.metadata.sessionId"),
    *("ai.telemetry.metadata.session_id", "traceloop.association.properties.session_id"),
)
INPUT_TOKENS = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt")
OUTPUT_TOKENS = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion")
MARKS = {
    "version": ("langfuse.version", "langfuse.observation.version"),
    "release": ("langfuse.release", "service.version"),
    "environment": ("langfuse.environment", "deployment.environment.name", "deployment.environment"),
    "tags": ("langfuse.trace.tags", "tag.tags"),
}
"""Where a span says who answered, as every source's metadata has it."""
_LIFTED = (
    *("traceloop.association.properties.", "ai.telemetry.metadata.", "langfuse.observation.metadata."),
    "langfuse.trace.metadata.",
)
"""Beginnings of what an application said of a call, the later ones to be believed more: the rest is the name."""
_PLACED = ("gen_ai.", "llm.", "ai.prompt", "ai.response", "ai.telemetry.metadata.", "input.", "output.", "langfuse.")
"""Beginnings of attributes that are no metadata as they stand."""
_TEXTS = frozenset({"events", "request_data", "response", "raw_input", "input", "output", "metadata", "tag.tags"})
"""Attributes that repeat the text of a call, or are taken apart."""


def is_call(span_attributes: Mapping[str, Any]) -> bool:
    """Whether a span is one call of a model that writes text."""
    kind = span_attributes.get("langfuse.observation.type")
    if kind is not None:
        return str(kind).lower() == "generation"
    operation = span_attributes.get("gen_ai.operation.name")
    if operation is not None:
        return operation in MODEL_CALLS
    if "openinference.span.kind" in span_attributes:
        return str(span_attributes["openinference.span.kind"]).upper() == "LLM"
    return "gen_ai.request.model" in span_attributes or "gen_ai.response.model" in span_attributes


def text_of(places: Mapping[str, Any], keys: tuple[str, ...]) -> str | None:
    """The first that is there, as text."""
    return next((str(places[key]) for key in keys if places.get(key) not in (None, "")), None)


def finish_reason(span_attributes: Mapping[str, Any]) -> str | None:
    """Why the first choice ended."""
    value = decoded(
        span_attributes.get("gen_ai.response.finish_reasons", span_attributes.get("ai.response.finishReason"))
    )
    reason = next(iter(value), None) if isinstance(value, list) else value
    return reason if isinstance(reason, str) else None


def tokens(span_attributes: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Tokens of input and output, as they are written."""
    usage = object_of(decoded(span_attributes.get("langfuse.observation.usage_details")))
    return (
        text_of(span_attributes, INPUT_TOKENS) or text_of(usage, ("input", "prompt_tokens", "input_tokens")),
        text_of(span_attributes, OUTPUT_TOKENS) or text_of(usage, ("output", "completion_tokens", "output_tokens")),
    )


def metadata(everything: Mapping[str, Any]) -> Json:
    """What is said of a call. `everything`: attributes of the resource and of the span."""
    result = {key: value for key, value in everything.items() if not key.startswith(_PLACED) and key not in _TEXTS}
    result |= object_of(decoded(everything.get("metadata")))
    for prefix in _LIFTED:
        result |= {key.removeprefix(prefix): value for key, value in everything.items() if key.startswith(prefix)}
    marks = {mark: next((everything[key] for key in keys if everything.get(key)), None) for mark, keys in MARKS.items()}
    return {**{mark: value for mark, value in marks.items() if isinstance(value, str | list)}, **result}
