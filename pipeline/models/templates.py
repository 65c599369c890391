"""Where a model directory keeps its chat templates."""

import json
from pathlib import Path
from typing import Any

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
