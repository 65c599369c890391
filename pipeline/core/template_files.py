"""A model directory's chat template, rendered without its tokenizer and without torch: for checks before a launch."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

CONFIG = "tokenizer_config.json"
DEFAULT, TOOL_USE = "default", "tool_use"
"""Names of templates in a directory with several: the second is for conversations with tools."""


class FolderTemplate:
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
        """The text of a conversation in the form of templates. Raises what a template raises."""
        from transformers.utils.chat_template_utils import render_jinja_template

        assert not tokenize, "there is no tokenizer"
        template = self.chat_template
        if not isinstance(template, str):
            names = (TOOL_USE, DEFAULT) if tools is not None else (DEFAULT,)
            name = next((each for each in names if each in template), None)
            if name is None:
                raise TemplateError(f"there are several templates ({', '.join(template)}), and none is the default")
            template = template[name]
        given: dict[str, Any] = {"tools": tools, "add_generation_prompt": add_generation_prompt, **self._special_tokens}
        messages = [dict(message) for message in conversation]
        return render_jinja_template([messages], chat_template=template, **given)[0][0]


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
    further = config.get("extra_special_tokens")  # of one family of models
    named = {**_json(folder / "special_tokens_map.json"), **config, **(further if isinstance(further, dict) else {})}
    texts = {name: value.get("content") if isinstance(value, dict) else value for name, value in named.items()}
    special = {name: text for name, text in texts.items() if name.endswith("_token") and text and isinstance(text, str)}
    return FolderTemplate(templates[DEFAULT] if templates.keys() == {DEFAULT} else templates, special)


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
