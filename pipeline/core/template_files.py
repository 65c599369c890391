"""A model directory's chat template, rendered without its tokenizer: jinja2 alone, so a look before a launch can.

Owns where a template lies in a directory and the environment that templates are written for, as transformers 5.17 has
both. Refuses to count tokens, which takes the tokenizer, and to judge what is rendered (`chat_template`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

CONFIG = "tokenizer_config.json"
DEFAULT, TOOL_USE = "default", "tool_use"
"""Names of templates, where a directory has several: the second is taken for a conversation with tools."""


class FolderTemplate:
    """In the place of a tokenizer, where nothing but its chat template is asked of it."""

    def __init__(self, chat_template: str | dict[str, str], special_tokens: Mapping[str, str]) -> None:
        self.chat_template = chat_template
        self._special_tokens = special_tokens

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        tokenize: bool = False,
        add_generation_prompt: bool = False,
    ) -> str:
        """The text of a conversation in the form that templates take. Raises what a template raises."""
        assert not tokenize, "there is no tokenizer"
        template = _ENVIRONMENT.from_string(self._chosen(tools))
        return template.render(
            **self._special_tokens,
            messages=conversation,
            tools=tools,
            documents=None,
            add_generation_prompt=add_generation_prompt,
        )

    def _chosen(self, tools: object) -> str:
        if isinstance(self.chat_template, str):
            return self.chat_template
        wanted = [self.chat_template.get(TOOL_USE) if tools is not None else None, self.chat_template.get(DEFAULT)]
        chosen = next((each for each in wanted if each is not None), None)
        if chosen is None:
            raise TemplateError(
                f"there are several templates ({', '.join(self.chat_template)}), and none is the default"
            )
        return chosen


def folder_template(folder: Path) -> FolderTemplate | None:
    """The chat template of a model directory; None where it has none. Raises ValueError for files that are no JSON."""
    config = _json(folder / CONFIG)
    templates = {path.stem: _text(path) for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    if (folder / "chat_template.jinja").is_file():
        templates[DEFAULT] = _text(folder / "chat_template.jinja")
    held = config.get("chat_template")
    if not templates and isinstance(held, str):
        templates[DEFAULT] = held
    if not templates and isinstance(held, list):
        templates = {each["name"]: each["template"] for each in held}
    if not templates:
        return None
    named = {**_json(folder / "special_tokens_map.json"), **config, **_further_tokens(config)}
    special = {name: text for name, value in named.items() if name.endswith("_token") and (text := _token(value))}
    return FolderTemplate(templates[DEFAULT] if templates.keys() == {DEFAULT} else templates, special)


def _further_tokens(config: Mapping[str, Any]) -> dict[str, Any]:
    """Those that one family of models has."""
    further = config.get("extra_special_tokens")
    return further if isinstance(further, dict) else {}


def _token(value: Any) -> str:
    """A special token, written as its text or with its settings."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else ""


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        tree = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read ({error}). Save the tokenizer again.") from error
    return tree if isinstance(tree, dict) else {}


class _GenerationBlock(Extension):
    """`{% generation %}` marks what is the assistant's own; what is rendered is its content."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 names the type)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise(message: str) -> None:
    raise TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, **layout: Any) -> str:
    """Jinja's own escapes what HTML does not take."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **layout)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _environment() -> ImmutableSandboxedEnvironment:
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    made.filters["tojson"] = _tojson
    functions: Any = {"raise_exception": _raise, "strftime_now": _now}
    made.globals.update(functions)
    return made


_ENVIRONMENT = _environment()
