"""What the attributes of a span say of a call of a model: its messages, whose it is, who answered; as OpenTelemetry's
GenAI conventions have had them, OpenInference, Langfuse's SDKs, Vercel's AI SDK and traceloop."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.traces.sources import chat
from pipeline.traces.sources.otlp import SpanEvent, attributes
from pipeline.traces.sources.parts import normal_tools
from pipeline.traces.sources.shapes import (
    Json,
    Unreadable,
    decoded,
    grouped,
    in_order,
    list_of,
    literal,
    names,
    object_of,
)

_TOOLS = names("span_tools")
_EVENT = re.compile(r"gen_ai\.(system|user|assistant|tool)\.message")
_KEPT_BY_PROVIDER = ("resp_", "conv_")
"""Beginnings of OpenAI's ids: the request continues what the provider has, and holds its end alone."""
Attributes = Mapping[str, Any]
MODEL_CALLS = frozenset({"chat", "text_completion", "generate_content"})
"""`gen_ai.operation.name` of a call; other operations (embeddings, execute_tool, invoke_agent) hold no answer."""
MODELS, USERS, SESSIONS = map(names, ("models", "users", "sessions"))
INPUT_TOKENS, OUTPUT_TOKENS = names("input_tokens"), names("output_tokens")
MARKS, _LIFTED, _PLACED, _TEXTS = grouped("marks"), names("lifted"), names("placed"), names("span_texts")


def is_message_event(name: str) -> bool:
    return name == "gen_ai.choice" or _EVENT.fullmatch(name) is not None


def asked(span: Attributes, events: Iterable[SpanEvent]) -> chat.Chat:
    try:
        return _asked(span, events)
    except Unreadable as odd:
        return chat.Chat([], unreadable=f"input: {odd}")


def answered(span: Attributes, events: Iterable[SpanEvent]) -> chat.Chat:
    """The output of a call: its first choice, the one that was served."""
    try:
        return _answered(span, events)
    except Unreadable as odd:
        return chat.Chat([], unreadable=f"output: {odd}")


def _asked(span: Attributes, events: Iterable[SpanEvent]) -> chat.Chat:
    if (recorded := span.get("langfuse.observation.input")) is not None:
        return chat.parse(recorded, "user")
    messages, _ = _conversation(_events(span, events))
    value = span.get("gen_ai.input.messages", span.get("gen_ai.prompt"))
    value = value or messages or _numbered(span, "prompt")
    parsed = chat.parse(value, "user") if value else _openinference_asked(span)
    if rules := decoded(span.get("gen_ai.system_instructions")):
        instructions = chat.parse({"role": "system", "parts": rules if isinstance(rules, list) else [rules]}, "system")
        texts = [message["content"] for message in parsed.messages if message["role"] == "system"]
        # openlit writes the instructions twice: they are among the messages too.
        if not texts or "".join(texts) != "".join(message["content"] for message in instructions.messages):
            parsed = chat.joined(instructions, parsed)
    if str(span.get("gen_ai.conversation.id", "")).startswith(_KEPT_BY_PROVIDER):
        parsed = chat.Chat([], unreadable="input: a conversation that the provider keeps")
    if chat.torn(parsed):
        parsed = chat.Chat([], unreadable="input: a tool's result without its call")
    parsed.tools += _tools(span)
    return parsed


def _answered(span: Attributes, events: Iterable[SpanEvent]) -> chat.Chat:
    if (recorded := span.get("langfuse.observation.output")) is not None:
        return chat.of_output(recorded)
    _, answers = _conversation(_events(span, events))
    value = decoded(span.get("gen_ai.output.messages", span.get("gen_ai.completion")))
    value = value or answers or _numbered(span, "completion")
    if not value:
        return _openinference_answered(span)
    if not isinstance(value, list):
        return chat.parse(value, "assistant")
    messages = list_of(value)
    only = object_of(messages[0]) if len(messages) == 1 else {}
    # litellm leaves the calls out of the only message, and numbers them.
    calls = _by_number(span, r"gen_ai\.completion\.(\d+)\.function_call\.(name|arguments)")
    if calls and only and not only.get("tool_calls") and "tool_call" not in str(only.get("parts")):
        messages = [{**only, "tool_calls": [calls[n] for n in sorted(calls)]}]
    return chat.served(messages)


def _by_number(fields: Attributes, pattern: str) -> dict[int, Json]:
    """Values by a number in the names of their fields. `pattern` has two groups: the number and the rest of a name."""
    numbered: dict[int, Json] = {}
    for key, value in fields.items():
        if match := re.fullmatch(pattern, key):
            numbered.setdefault(int(match[1]), {})[match[2] or ""] = value
    return numbered


def _conversation(events: list[tuple[str, Json]]) -> tuple[list[Json], list[Json]]:
    """Messages and answers. Where no event is a choice, the assistant's last messages are the answer."""
    messages = [_event_message(role[1], event) for name, event in events if (role := _EVENT.fullmatch(name))]
    answers = [_event_message("assistant", event) for name, event in events if name == "gen_ai.choice"]
    if answers:
        return messages, answers
    last = max((n for n, message in enumerate(messages, 1) if message["role"] != "assistant"), default=0)
    return messages[:last], messages[last:]


def _tools(span: Attributes) -> list[Json]:
    """Definitions of tools: listed, or numbered (`llm.tools.0.tool.json_schema` and the like), or the request's."""
    functions = _by_number(span, r"llm\.request\.functions\.(\d+)\.(name|description|parameters|input_schema)")
    numbered = _by_number(span, r"llm\.tools\.(\d+)\.tool\.(json_schema)")
    schemas = [numbered[n]["json_schema"] for n in sorted(numbered)]
    listed = (list_of(decoded(span.get(key))) for key in ("llm.tools", "ai.prompt.tools"))
    places = (
        next((span[key] for key in _TOOLS if span.get(key)), None),
        [functions[n] for n in sorted(functions)],
        [*schemas, *(_unquoted(tool) for tools in listed for tool in tools)],
        list_of(decoded(object_of(decoded(span.get("llm.invocation_parameters"))).get("tools"))),
    )
    return next((tools for place in places if (tools := normal_tools(place))), [])


def _events(span: Attributes, events: Iterable[SpanEvent]) -> list[tuple[str, Json]]:
    held = [object_of(each) for each in list_of(decoded(span.get("events"))) if isinstance(each, dict)]
    attribute_events = [(str(each.get("event.name")), each) for each in held]
    return [*attribute_events, *((event.name, attributes(event.attributes)) for event in events)]


def _event_message(role: str, event: Json) -> Json:
    """A message that is an event of its own: its fields are attributes, or JSON in one of them."""
    inner = decoded(event.get("gen_ai.event.content", event.get("message")))
    body = {**event, **object_of(inner)}
    nested = decoded(body.get("message"))
    body |= object_of(nested)
    lists = (each for each, kinds in ((inner, (str, list)), (nested, list)) if isinstance(each, kinds))
    content: Any = next(lists, body.get("content"))
    kept = {k: decoded(body[k]) for k in ("tool_calls", "finish_reason", "tool_call_id", "name") if k in body}
    if role == "tool" and "id" in body:
        kept.setdefault("tool_call_id", body["id"])
    return {"role": body.get("role") or role, "content": content, **kept}


def _numbered(span: Attributes, side: str) -> list[Json]:
    """`gen_ai.prompt.0.role` and the like."""
    usual = {"role": "user" if side == "prompt" else "assistant", "content": ""}
    numbered = in_order(_by_number(span, rf"gen_ai\.{side}\.(\d+)\.(.+)"))
    return [_message(fields, usual) for fields in numbered]


def _openinference_asked(span: Attributes) -> chat.Chat:
    messages = _openinference_messages(span, "input")
    content: Any = messages or span.get("llm.prompts.0.prompt.text")
    content = content or span.get("ai.prompt.messages", span.get("ai.prompt"))
    parsed = chat.parse(content or span.get("input.value"), "user")
    if messages and chat.torn(parsed):
        parsed = chat.Chat([], unreadable="input: a message of llm.input_messages is missing")
    return parsed


def _openinference_answered(span: Attributes) -> chat.Chat:
    """Where the provider's response is there too it decides: of several choices, of a refusal, and of parts that an
    instrumentation has not told from reasoning."""
    messages = _openinference_messages(span, "output")
    response = _response(span, whole=not messages)
    if messages:
        parsed = chat.served(list(messages))
        differs = chat.completion(parsed) != chat.completion(response)
        return response if chat.has_answer(response) and differs and not response.unreadable else parsed
    text, calls = span.get("ai.response.text"), span.get("ai.response.toolCalls")
    if text or calls:
        return chat.parse({"text": text or "", "toolCalls": calls}, "assistant")
    answer = span.get("ai.response.object")
    return response if answer is None else chat.parse(answer, "assistant")


def _response(span: Attributes, whole: bool) -> chat.Chat:
    """The response as it came. Without `whole` it has to be a structure: a text is what some object prints."""
    value = span.get("output.value")
    inner = decoded(value)
    is_structure = isinstance(inner, dict | list)
    as_json = is_structure and "json" in str(span.get("output.mime_type", ""))
    if not whole and not is_structure:
        return chat.Chat([])
    return chat.of_output(inner if as_json or not whole else value)


def _openinference_messages(span: Attributes, side: str) -> list[Json]:
    """`llm.input_messages.0.message.role` and the like, or the list of messages with such keys."""
    prefix = f"llm.{side}_messages"
    listed = enumerate(list_of(decoded(span.get(prefix))))
    messages = {n: object_of(item) for n, item in listed if isinstance(item, dict)}
    for n, fields in _by_number(span, rf"{re.escape(prefix)}\.(\d+)(?:\.(.*))?").items():
        messages[n] = {**messages.get(n, {}), **fields}
    # Of OpenAI's responses the instructions are number 0, whether there are any or not.
    first = 1 if side == "input" and messages and 0 not in messages else 0
    usual = {"role": "user" if side == "input" else "assistant"}
    return [_message(each, usual) for each in in_order(messages, first)]


def _message(fields: Json, usual: Json) -> Json:
    """A message out of the numbered fields of its calls, parts and results. `usual`: where it does not say so."""
    fields = {key.removeprefix("message."): value for key, value in fields.items()}
    calls, parts = _by_number(fields, _CALL), _by_number(fields, _PART)
    for call in calls.values():
        call.update({"name": _unquoted(call["name"])} if "name" in call else {})
    # AutoGen's results of tools, of one message several
    results = [decoded(value) for key, value in fields.items() if key.startswith("function.")]
    own = {k: value for k, value in fields.items() if not re.fullmatch(rf"{_CALL}|{_PART}|function\..*", k)}
    content: Any = in_order(parts) or [
        {"type": "tool_result", **result} for result in results if isinstance(result, dict)
    ]
    return {
        **usual,
        **own,
        **({"content": content} if content else {}),
        **({"tool_calls": in_order(calls)} if calls else {}),
    }


_CALL = r"tool_calls\.(\d+)\.(?:tool_call\.(?:function\.)?)?(.+)"
_PART = r"contents\.(\d+)\.message_content\.(.+)"


def _unquoted(value: Any) -> Any:
    """Texts as they were before Python printed them: OpenInference's `crewai` writes names and schemas so."""
    if isinstance(value, dict):
        return {key: _unquoted(inner) for key, inner in object_of(value).items()}
    if isinstance(value, list):
        return [_unquoted(inner) for inner in list_of(value)]
    if not isinstance(value, str) or (value[:1], value[-1:]) not in (("'", "'"), ("{", "}"), ("[", "]")):
        return value
    try:
        return literal(value)
    except Unreadable:
        return value


def is_call(span: Attributes) -> bool:
    """Whether a span is one call of a model that writes text."""
    kind = span.get("langfuse.observation.type")
    if kind is not None:
        return str(kind).lower() == "generation"
    operation = span.get("gen_ai.operation.name")
    if operation is not None:
        return operation in MODEL_CALLS
    if "openinference.span.kind" in span:
        return str(span["openinference.span.kind"]).upper() == "LLM"
    return "gen_ai.request.model" in span or "gen_ai.response.model" in span


def text_of(places: Attributes, keys: tuple[str, ...]) -> str | None:
    return next((str(places[key]) for key in keys if places.get(key) not in (None, "")), None)


def finish_reason(span: Attributes) -> str | None:
    value = decoded(span.get("gen_ai.response.finish_reasons", span.get("ai.response.finishReason")))
    reason = next(iter(value), None) if isinstance(value, list) else value
    return reason if isinstance(reason, str) else None


def tokens(span: Attributes) -> tuple[str | None, str | None]:
    usage = object_of(decoded(span.get("langfuse.observation.usage_details")))
    return (
        text_of(span, INPUT_TOKENS) or text_of(usage, ("input", "prompt_tokens", "input_tokens")),
        text_of(span, OUTPUT_TOKENS) or text_of(usage, ("output", "completion_tokens", "output_tokens")),
    )


def metadata(everything: Attributes) -> Json:
    """What is said of a call. `everything`: attributes of the resource and of the span."""
    result = {key: value for key, value in everything.items() if not key.startswith(_PLACED) and key not in _TEXTS}
    result |= object_of(decoded(everything.get("metadata")))
    for prefix in _LIFTED:
        result |= {key.removeprefix(prefix): value for key, value in everything.items() if key.startswith(prefix)}
    marks = {mark: next((everything[key] for key in keys if everything.get(key)), None) for mark, keys in MARKS.items()}
    return {**{mark: value for mark, value in marks.items() if isinstance(value, str | list)}, **result}
