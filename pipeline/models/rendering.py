"""Renders conversations with tools by a tokenizer's chat template. Raises ValueError where the template leaves out
definitions, calls, results or earlier turns. `with_tools` makes TRL, which calls the tokenizer, render the same."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import TemplateError

from pipeline.core.conversation import TOOLS, call_id, calls_of, functions, split
from pipeline.models.templates import CONFIG, DEFAULT, FOR_TOOLS, json_file, templates_of
from pipeline.models.tokenizer import load_tokenizer

_SCHEMA = {"type": "object", "properties": {"probe_key": {"type": "string"}}, "required": ["probe_key"]}
_PROBE_TOOL = {"name": "probe_tool", "description": "probe", "parameters": _SCHEMA}
_OFFERED = {"role": TOOLS, "content": json.dumps([{"type": "function", "function": _PROBE_TOOL}])}
_ASKED = {"role": "user", "content": "probe"}
_CALL = {"name": "probe_call", "arguments": '{"probe_key": "probe_value"}'}
_CALLING = {
    "role": "assistant",
    "content": "",
    "tool_calls": json.dumps([{"id": "probe0000", "type": "function", "function": _CALL}]),
}
_RESULT = {"role": "tool", "content": "probe_result", "tool_call_id": "probe0000"}
_SYSTEM = [{"role": "system", "content": "probe_system"}, _ASKED]
_REPEATED = [{"role": "user", "content": "probe_first"}, _ASKED]
_TURNS = [{"role": "user", "content": "probe_first"}, {"role": "assistant", "content": "probe_reply"}, _ASKED]


DEFINITIONS, CALLS, RESULTS = "the definitions of tools", "calls of tools", "results of tools"
TURNS, SYSTEM, REPEATED = "earlier turns", "system messages", "a second user message in a row"
WITHOUT_TOOLS = frozenset([TURNS, SYSTEM, REPEATED])
_PROBES = {
    DEFINITIONS: ([_OFFERED, _ASKED], ("probe_tool", "probe_key")),
    CALLS: ([_ASKED, _CALLING], ("probe_call", "probe_key", "probe_value")),
    RESULTS: ([_ASKED, _CALLING, _RESULT], ("probe_result",)),
    TURNS: (_TURNS, ("probe_first", "probe_reply")),
    SYSTEM: (_SYSTEM, ("probe_system",)),
    REPEATED: (_REPEATED, ("probe_first",)),
}
"""A conversation with each part, and the texts that stand in it where a template renders the part."""


def kinds_of(messages: Sequence[Mapping[str, Any]]) -> set[str]:
    """The parts of a conversation that a template has to render, besides a single question."""
    roles = [message["role"] for message in messages]
    kinds = {kind for kind, role in ((DEFINITIONS, TOOLS), (RESULTS, "tool")) if role in roles}
    answers = [message for message in messages if message["role"] == "assistant"]
    if any(message.get("tool_calls") or split(message.get("content") or "")[1] for message in answers):
        kinds.add(CALLS)
    if answers and "user" in roles[roles.index("assistant") :]:
        kinds.add(TURNS)
    if "system" in roles:
        kinds.add(SYSTEM)
    if any(pair == ("user", "user") for pair in pairwise(roles)):
        kinds.add(REPEATED)
    return kinds


def for_template(messages: Iterable[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
    """Messages in the form of chat templates, and the tools. Arguments of calls are objects; each call and its result
    have an id, and the result its tool's name."""
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
    """The calls of a message, in `tool_calls` or in an assistant's text, which loses them."""
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
    """The text of a conversation. Raises ValueError where the template leaves something out, jinja2.TemplateError for
    what it refuses."""
    held = list(messages)
    check(tokenizer, held)
    return _rendered(tokenizer, held, add_generation_prompt)


def check(tokenizer: Any, messages: Sequence[Mapping[str, Any]]) -> None:
    """Raise ValueError where the template leaves out earlier turns, tools, calls or results of the conversation."""
    if absent := lacking(tokenizer, [messages]):
        raise ValueError(
            f"the chat template leaves out {', '.join(absent)}. Set base_model.chat.template to one that renders them."
        )


def _rendered(tokenizer: Any, messages: Iterable[Mapping[str, Any]], add_generation_prompt: bool) -> str:
    plain, tools = for_template(messages)
    apply = getattr(tokenizer.apply_chat_template, "plain", tokenizer.apply_chat_template)
    offered = {"tools": tools} if tools else {}
    return str(apply(plain, tokenize=False, add_generation_prompt=add_generation_prompt, **offered))


def rendered_answer(tokenizer: Any, prompt: Sequence[Mapping[str, Any]], answer: str) -> str:
    """The text that generation would draw for an answer with calls. Raises ValueError for a template that renders a
    prompt differently once an answer follows."""
    before = rendered(tokenizer, prompt)
    whole = rendered(tokenizer, [*prompt, {"role": "assistant", "content": answer}], add_generation_prompt=False)
    if not whole.startswith(before):
        raise ValueError(
            "The chat template renders a prompt otherwise once an answer with calls follows it, so nothing can be "
            "trained to call a tool there. Save the tokenizer with a template that only adds to what came before."
        )
    return whole[len(before) :]


_known: dict[str, frozenset[str]] = {}


def left_out(tokenizer: Any) -> frozenset[str]:
    """The parts of a conversation, besides a single question, that the tokenizer's chat template does not render."""
    template = json.dumps(getattr(tokenizer, "chat_template", None), sort_keys=True)
    if template not in _known:
        _known[template] = frozenset(kind for kind, probe in _PROBES.items() if not _shows(tokenizer, *probe))
    return _known[template]


def _shows(tokenizer: Any, messages: list[dict[str, str]], texts: tuple[str, ...]) -> bool:
    try:
        whole = _rendered(tokenizer, messages, add_generation_prompt=messages[-1]["role"] != "assistant")
    except (TemplateError, ValueError, TypeError, KeyError, AttributeError):
        return False
    return all(text in whole for text in texts)


def lacking(tokenizer: Any, conversations: Iterable[Sequence[Mapping[str, Any]]]) -> dict[str, int]:
    """The number of conversations with each part that the template leaves out."""
    counts = Counter(kind for messages in conversations for kind in kinds_of(messages))
    absent = left_out(tokenizer) if counts else ()
    return {kind: counts[kind] for kind in _PROBES if counts[kind] and kind in absent}


def refusal(model: str, absent: Mapping[str, int], rows: int) -> str:
    counted = ", ".join(f"{what} ({count:,} of {rows:,} rows)" for what, count in absent.items())
    remedies = ["base_model.chat.template to a file that renders them"]
    if SYSTEM in absent:
        remedies.append("base_model.chat.system to merge_into_user")
    if absent.keys() - WITHOUT_TOOLS:
        remedies.append("selection.tools to leave_out, which leaves rows with tools out")
    return (
        f"The chat template of {model} leaves out or refuses {counted}: the model would be trained on conversations "
        f"that it never had. Set {', or '.join(remedies)}."
    )


def with_tools(tokenizer: Any) -> Any:
    """The tokenizer, whose `apply_chat_template` takes conversations in the form of this package."""
    if not isinstance(tokenizer.apply_chat_template, ToolTemplate):
        tokenizer.apply_chat_template = ToolTemplate(tokenizer)
    return tokenizer


def chat_tokenizer(folder: str) -> Any:
    """The tokenizer of a model directory, with tools. Raises ValueError where it has no chat template."""
    tokenizer = load_tokenizer(folder)
    if not tokenizer.chat_template:
        raise ValueError(f"The tokenizer in {folder} has no chat template. Set base_model.chat.template.")
    return with_tools(tokenizer)


class ToolTemplate:
    """Replaces a tokenizer's `apply_chat_template`; each conversation has its own tools."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.plain = tokenizer.apply_chat_template

    def __call__(self, conversation: Any, tools: Any = None, **settings: Any) -> Any:
        if not (conversation and isinstance(conversation[0], (list, tuple))):
            check(self._tokenizer, conversation)
            plain, own = for_template(conversation)
            return self.plain(plain, tools=own or tools, **settings)
        for messages in conversation:
            check(self._tokenizer, messages)
        rows = [for_template(messages) for messages in conversation]
        if not any(own for _, own in rows):
            return self.plain([messages for messages, _ in rows], tools=tools, **settings)
        tokenised, as_dict = settings.pop("tokenize", True), settings.pop("return_dict", True)
        own_settings = settings.pop("tokenizer_kwargs", None) or {}
        names = ("padding", "truncation", "max_length", "return_tensors")
        own_settings |= {name: settings.pop(name) for name in names if name in settings}
        texts = [self.plain(messages, tools=own or tools, tokenize=False, **settings) for messages, own in rows]
        if not tokenised:
            return texts
        encoded = self._tokenizer(texts, add_special_tokens=False, **own_settings)
        return encoded if as_dict else encoded["input_ids"]


class FolderTemplate(NamedTuple):
    """A model directory's chat templates, without its tokenizer and without torch: for checks before a launch."""

    chat_template: Mapping[str, str]
    special_tokens: Mapping[str, str]

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        tokenize: bool = False,
        add_generation_prompt: bool = False,
        **variables: Any,
    ) -> str:
        """The text of a conversation in the form of templates. Raises what a template raises."""
        from transformers.utils.chat_template_utils import render_jinja_template

        assert not tokenize, "there is no tokenizer"
        given: dict[str, Any] = {"tools": tools, "add_generation_prompt": add_generation_prompt}
        given |= {**self.special_tokens, **variables}
        name = FOR_TOOLS if tools and FOR_TOOLS in self.chat_template else DEFAULT
        messages = [dict(message) for message in conversation]
        return render_jinja_template([messages], chat_template=self.chat_template[name], **given)[0][0]


def folder_template(folder: Path) -> FolderTemplate | None:
    """The chat template of a model directory; None where it has none. Raises ValueError for files that are no JSON."""
    templates = templates_of(folder)
    if DEFAULT not in templates:
        return None
    config = json_file(folder / CONFIG)
    further = config.get("extra_special_tokens")  # of one family of models
    named = {
        **json_file(folder / "special_tokens_map.json"),
        **config,
        **(further if isinstance(further, dict) else {}),
    }
    texts = {name: value.get("content") if isinstance(value, dict) else value for name, value in named.items()}
    special = {name: text for name, text in texts.items() if name.endswith("_token") and text and isinstance(text, str)}
    return FolderTemplate(templates, special)
