"""What a tokenizer's chat template makes of a conversation with tools, and whether it can.

Arguments stay text in every table, for Arrow would merge the structs of different tools into one of all their keys;
here, last, they become the objects that templates take. `with_tools` lets TRL, which calls the tokenizer itself, render
the same. Refuses a template by name where it leaves out definitions, calls, results or earlier turns: a model would be
trained on a conversation that it never had.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jinja2 import TemplateError

from pipeline.core.conversation import TOOLS, call_id, calls_of, functions, split

_PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "probe",
        "parameters": {"type": "object", "properties": {"probe_key": {"type": "string"}}, "required": ["probe_key"]},
    },
}
_PROBE_CALL = json.dumps(
    [
        {
            "id": "probe0000",
            "type": "function",
            "function": {"name": "probe_call", "arguments": '{"probe_key": "probe_value"}'},
        }
    ]
)


DEFINITIONS, CALLS, RESULTS, TURNS = (
    "the definitions of tools",
    "calls of tools",
    "results of tools",
    "earlier turns",
)


class TemplateSupport(NamedTuple):
    """What of a conversation a chat template renders, beside a single question."""

    definitions: bool
    calls: bool
    results: bool
    turns: bool

    @property
    def left_out(self) -> frozenset[str]:
        return frozenset(name for name, renders in zip(_KINDS, self, strict=True) if not renders)

    def lacking(self, conversations: Iterable[Sequence[Mapping[str, Any]]]) -> dict[str, int]:
        """How many of the conversations hold what the template leaves out, by what it is."""
        counts = Counter(kind for messages in conversations for kind in kinds_of(messages))
        return {kind: counts[kind] for kind in _KINDS if counts[kind] and kind in self.left_out}


_KINDS = (DEFINITIONS, CALLS, RESULTS, TURNS)


def kinds_of(messages: Sequence[Mapping[str, Any]]) -> set[str]:
    """What a conversation takes of a template, beside a single question."""
    kinds: set[str] = set()
    answered = False
    for message in messages:
        role = message["role"]
        kinds |= {DEFINITIONS} if role == TOOLS else {RESULTS} if role == "tool" else set()
        if message.get("tool_calls") or (role == "assistant" and split(message.get("content") or "")[1]):
            kinds.add(CALLS)
        if role == "user" and answered:
            kinds.add(TURNS)
        answered = answered or role == "assistant"
    return kinds


def for_template(messages: Iterable[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
    """Messages as chat templates take them, and the tools beside them.

    Calls are decoded, their arguments are objects; each call and its result have an id, and the result its tool's name.
    """
    plain: list[dict[str, Any]] = []
    tools: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    waiting: list[str] = []
    for message in messages:
        if message["role"] == TOOLS:
            tools += functions(message["content"])
            continue
        kept = {name: value for name, value in message.items() if value is not None}
        calls = _calls(kept)
        if calls:
            for call in calls:
                call.setdefault("id", call_id(len(names)))
                names[call["id"]] = call["function"]["name"]
            waiting = [call["id"] for call in calls]
            kept["tool_calls"] = calls
        elif kept["role"] == "tool":
            called = kept.setdefault("tool_call_id", waiting[0] if waiting else call_id(0))
            waiting = [each for each in waiting if each != called]
            if called in names:
                kept.setdefault("name", names[called])
        plain.append(kept)
    return plain, tools or None


def _calls(message: dict[str, Any]) -> list[dict[str, Any]]:
    """The calls of a message, in `tool_calls` or in an assistant's text; the text loses its own."""
    held = message.get("tool_calls")
    if held:
        calls = calls_of(held if isinstance(held, str) else json.dumps(held, ensure_ascii=False))
        if calls is None:
            raise ValueError("A call in the conversation has no name, or arguments that are no JSON object.")
        return calls
    if message["role"] != "assistant":
        return []
    message["content"], calls = split(message["content"])
    return calls


def rendered(tokenizer: Any, messages: Iterable[Mapping[str, Any]], add_generation_prompt: bool = True) -> str:
    """The text of a conversation.

    Raises ValueError for one of which the template leaves something out, and as jinja2.TemplateError what it refuses.
    """
    held = list(messages)
    check(tokenizer, held)
    return _rendered(tokenizer, held, add_generation_prompt)


def check(tokenizer: Any, messages: Sequence[Mapping[str, Any]]) -> None:
    """Raise ValueError where the template leaves out earlier turns, tools, calls or results of the conversation."""
    if kinds_of(messages) and (lacking := support_of(tokenizer).lacking([messages])):
        raise ValueError(
            f"the chat template leaves out {', '.join(lacking)}. Save the tokenizer with one that renders them."
        )


def _rendered(tokenizer: Any, messages: Iterable[Mapping[str, Any]], add_generation_prompt: bool) -> str:
    plain, tools = for_template(messages)
    apply = getattr(tokenizer.apply_chat_template, "plain", tokenizer.apply_chat_template)
    offered = {"tools": tools} if tools else {}
    return str(apply(plain, tokenize=False, add_generation_prompt=add_generation_prompt, **offered))


def rendered_answer(tokenizer: Any, prompt: Sequence[Mapping[str, Any]], answer: str) -> str:
    """What generation would have drawn for an answer with calls, with what the template puts after it.

    Raises ValueError for a template that renders a conversation otherwise once it has an answer.
    """
    before = rendered(tokenizer, prompt)
    whole = rendered(tokenizer, [*prompt, {"role": "assistant", "content": answer}], add_generation_prompt=False)
    if not whole.startswith(before):
        raise ValueError(
            "The chat template renders a prompt otherwise once an answer with calls follows it, so nothing can be "
            "trained to call a tool there. Save the tokenizer with a template that only adds to what came before."
        )
    return whole[len(before) :]


_known: dict[str, TemplateSupport] = {}


def support_of(tokenizer: Any) -> TemplateSupport:
    """What the tokenizer's chat template renders of a small conversation with a tool."""
    template = json.dumps(getattr(tokenizer, "chat_template", None), sort_keys=True)
    if template not in _known:
        _known[template] = _probed(tokenizer)
    return _known[template]


def _probed(tokenizer: Any) -> TemplateSupport:
    user = {"role": "user", "content": "probe"}
    calling = {"role": "assistant", "content": "", "tool_calls": _PROBE_CALL}
    result = {"role": "tool", "content": "probe_result", "tool_call_id": "probe0000"}
    offered = {"role": TOOLS, "content": json.dumps([_PROBE_TOOL])}
    turns = [{**user, "content": "probe_first"}, {"role": "assistant", "content": "probe_reply"}, user]
    return TemplateSupport(
        definitions=_shows(tokenizer, [offered, user], ("probe_tool", "probe_key")),
        calls=_shows(tokenizer, [user, calling], ("probe_call", "probe_key", "probe_value"), prompt=False),
        results=_shows(tokenizer, [user, calling, result], ("probe_result",)),
        turns=_shows(tokenizer, turns, ("probe_first", "probe_reply")),
    )


def _shows(tokenizer: Any, messages: list[dict[str, str]], texts: tuple[str, ...], prompt: bool = True) -> bool:
    try:
        whole = _rendered(tokenizer, messages, prompt)
    except (TemplateError, ValueError, TypeError, KeyError, AttributeError):
        return False
    return all(text in whole for text in texts)


def written_call(tokenizer: Any) -> str:
    """A small conversation that ends in a call of `probe_call`, as the template writes it; "" where it has no calls."""
    calling = {"role": "assistant", "content": "", "tool_calls": _PROBE_CALL}
    messages = [{"role": "user", "content": "probe"}, calling]
    return _rendered(tokenizer, messages, False) if support_of(tokenizer).calls else ""


def refuse_unrendered(tokenizer: Any, model: str, conversations: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    """Raise ValueError where conversations hold what the template of `model` leaves out."""
    held = [messages for messages in conversations if kinds_of(messages)]
    lacking = support_of(tokenizer).lacking(held) if held else {}
    if lacking:
        raise ValueError(refusal(model, lacking, len(conversations)))


def refusal(model: str, lacking: Mapping[str, int], rows: int) -> str:
    """What is said of a model whose template leaves out so much of so many rows."""
    counted = ", ".join(f"{what} ({count:,} of {rows:,} rows)" for what, count in lacking.items())
    else_leave = ", or leave rows with tools out with selection.tools: leave_out" if lacking.keys() - {TURNS} else ""
    return (
        f"The chat template of {model} leaves out {counted}: the model would be trained on conversations that it never "
        f"had. Save its tokenizer with a template that renders them{else_leave}."
    )


def with_tools(tokenizer: Any) -> Any:
    """The tokenizer, whose `apply_chat_template` takes conversations as this package holds them."""
    if not isinstance(tokenizer.apply_chat_template, ToolTemplate):
        tokenizer.apply_chat_template = ToolTemplate(tokenizer)
    return tokenizer


class ToolTemplate:
    """In the place of a tokenizer's `apply_chat_template`: each conversation has its own tools."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.plain = tokenizer.apply_chat_template

    def __call__(self, conversation: Any, tools: Any = None, **settings: Any) -> Any:
        several = bool(conversation) and isinstance(conversation[0], (list, tuple))
        conversations = list(conversation) if several else [conversation]
        for messages in conversations:
            check(self._tokenizer, messages)
        rows = [for_template(messages) for messages in conversations]
        if not any(own for _, own in rows):
            plain = [messages for messages, _ in rows]
            return self.plain(plain if several else plain[0], tools=tools, **settings)
        if not several:
            return self.plain(rows[0][0], tools=rows[0][1] or tools, **settings)
        tokenised, as_dict = settings.pop("tokenize", True), settings.pop("return_dict", True)
        own_settings = settings.pop("tokenizer_kwargs", None) or {}
        names = ("padding", "truncation", "max_length", "return_tensors")
        own_settings |= {name: settings.pop(name) for name in names if name in settings}
        texts = [self.plain(messages, tools=own or tools, tokenize=False, **settings) for messages, own in rows]
        if not tokenised:
            return texts
        encoded = self._tokenizer(texts, add_special_tokens=False, **own_settings)
        return encoded if as_dict else encoded["input_ids"]
