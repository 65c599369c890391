"""Where a model directory keeps its chat templates; and `base_model.chat`, written into the template of a copy of the
base: whoever loads the folder, or a model that was trained from it, renders the same text."""

import json
import os
import shutil
from datetime import date
from pathlib import Path
from typing import Any

from pipeline.core.model_files import model_files
from pipeline.core.storage import digest_json
from pipeline.recipe import ChatSettings

CONFIG, TEMPLATE, TEMPLATES = "tokenizer_config.json", "chat_template.jinja", "additional_chat_templates"
DEFAULT, FOR_TOOLS = "default", "tool_use"
"""Names of templates, where a model has several; transformers takes the second one where tools are offered."""


def templates_of(folder: Path) -> dict[str, str]:
    """The chat templates of a model directory by name; empty where it has none. Raises ValueError for files that are no
    JSON."""
    held = json_file(folder / CONFIG).get("chat_template")
    if isinstance(held, list):
        named = {str(each["name"]): str(each["template"]) for each in held}
    else:
        named = {DEFAULT: held} if isinstance(held, str) else {}
    if (file := folder / TEMPLATE).is_file():  # wins over the configuration
        named[DEFAULT] = _text(file)
    return named | {file.stem: _text(file) for file in sorted((folder / TEMPLATES).glob("*.jinja"))}


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def json_file(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        tree = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read ({error}). Save the tokenizer again.") from error
    return tree if isinstance(tree, dict) else {}


SYSTEM_FIRST = "messages and messages[0]['role'] == 'system'"
MERGE = (
    "{% if " + SYSTEM_FIRST + " %}{% if messages|length > 1 and messages[1]['role'] == 'user' %}"
    "{% set messages = [{'role': 'user', 'content': messages[0]['content'] + '\n\n' + messages[1]['content']}]"
    " + messages[2:] %}{% else %}"
    "{% set messages = [{'role': 'user', 'content': messages[0]['content']}] + messages[1:] %}{% endif %}{% endif %}"
)
REFUSE = (
    "{% if " + SYSTEM_FIRST + " %}{{ raise_exception('base_model.chat.system refuses system messages') }}{% endif %}"
)
DIRECTIVES = "aAbBdmyYjUWHIMSp"
"""Of strftime, which templates write dates with."""
FIRST_OUTPUT = "{{ '' }}"
"""Keeps the newline that a template begins with: Jinja removes one behind a statement."""


def with_settings(template: str, chat: ChatSettings) -> str:
    """A chat template that renders as the settings say; `chat.template` is the caller's."""
    before = ""
    if chat.thinking is not None:
        switch = str(chat.thinking).lower()
        before += "{% set enable_thinking = " + switch + " %}{% set thinking = " + switch + " %}"
    if chat.date is not None:
        before += _calendar(chat.date)
    before += {"keep": "", "merge_into_user": MERGE, "refuse": REFUSE}[chat.system]
    return f"{before}{FIRST_OUTPUT}{template}" if before else template


def _calendar(day: date) -> str:
    """A macro in the place of transformers' `strftime_now`, for one day."""
    written = "".join(f"|replace('%{each}', '{day.strftime('%' + each)}')" for each in DIRECTIVES)
    return "{% macro strftime_now(format) %}{{ format" + written + " }}{% endmacro %}"


def chat_digest(chat: ChatSettings) -> str:
    """Of the settings and of the template's text. Raises ValueError where its file cannot be read."""
    template = _read(Path(chat.template)) if chat.template else ""
    return digest_json([template, chat.model_dump(mode="json", exclude={"template"})])


def copy_with(chat: ChatSettings, base: Path, to: Path) -> None:
    """The base in the empty folder `to`, with these settings in its template. Files are linked where the disk is the
    same. Raises ValueError where there is no template, or its file cannot be read."""
    for name in model_files(base):
        target = to / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(base / name, target)
        except OSError:  # another disk
            shutil.copy2(base / name, target)
    templates = {"default": _read(Path(chat.template))} if chat.template else templates_of(base)
    if not templates:
        raise ValueError(f"base_model.chat: {base} has no chat template. Set base_model.chat.template to a file.")
    _without_templates(to)
    for name, template in templates.items():
        path = to / TEMPLATE if name == "default" else to / TEMPLATES / f"{name}.jinja"
        path.parent.mkdir(exist_ok=True)
        path.write_text(with_settings(template, chat), encoding="utf-8")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ValueError(f"base_model.chat.template: {path} cannot be read ({error}). Name a Jinja file.") from error


def _without_templates(folder: Path) -> None:
    """Files are replaced, not written into: they may be links to the base's."""
    (folder / TEMPLATE).unlink(missing_ok=True)
    shutil.rmtree(folder / TEMPLATES, ignore_errors=True)
    path = folder / CONFIG
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if config.pop("chat_template", None) is not None:
        path.unlink()
        path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
