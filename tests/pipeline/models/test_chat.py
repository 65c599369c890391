"""Chat settings, rendered by transformers from the folder that they were written into."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from jinja2 import TemplateError
from transformers import AutoTokenizer

from pipeline.demo import MODEL_DIR
from pipeline.models.rendering import folder_template
from pipeline.models.templates import copy_with
from pipeline.recipe import ChatSettings

DATED = (
    "\n{% macro today() %}{{ strftime_now('%d %b %Y') }}{% endmacro %}{{ today() }};"
    "{% for m in messages %}{{ m.role }}: {{ m.content }};{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
)
ALTERNATING = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}"
    "{% endif %}{{ m.role }}: {{ m.content }};{% endfor %}"
)
SYSTEM, USER = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}
ANSWER = {"role": "assistant", "content": "Hi"}


def rendered(tmp_path: Path, template: str | dict[str, str], messages: list[dict[str, str]], **chat: Any) -> str:
    """What transformers makes of the copy, and our own look at the folder."""
    base, copy = tmp_path / "base", tmp_path / "copy"
    shutil.copytree(MODEL_DIR, base, dirs_exist_ok=True)
    (base / "chat_template.jinja").unlink(missing_ok=True)
    config = json.loads((base / "tokenizer_config.json").read_text())
    named = [{"name": name, "template": text} for name, text in template.items()] if isinstance(template, dict) else 0
    (base / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": named or template}))
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    copy_with(ChatSettings(**chat), base, copy)
    tokenizer: Any = AutoTokenizer.from_pretrained(str(copy))
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    look = folder_template(copy)
    assert look is not None and look.apply_chat_template(messages) == text
    return text


def test_the_date_is_the_recipes_and_thinking_its_switch(tmp_path: Path) -> None:
    said = rendered(tmp_path, DATED, [USER], date="2026-01-31", thinking=False)
    assert said == "\n31 Jan 2026;user: Hello;<think></think>"
    assert rendered(tmp_path, DATED, [USER], date="2026-01-31") == "\n31 Jan 2026;user: Hello;"


def test_a_system_message_is_merged_into_the_first_users(tmp_path: Path) -> None:
    merged = "user: Be brief.\n\nHello;"
    assert rendered(tmp_path, ALTERNATING, [SYSTEM, USER], system="merge_into_user") == merged
    several = [SYSTEM, USER, ANSWER, USER]
    assert rendered(tmp_path, ALTERNATING, several, system="merge_into_user") == f"{merged}assistant: Hi;user: Hello;"
    assert rendered(tmp_path, ALTERNATING, [SYSTEM], system="merge_into_user") == "user: Be brief.;"
    assert rendered(tmp_path, ALTERNATING, [USER], system="merge_into_user") == "user: Hello;"


def test_refused_system_messages_raise_and_the_others_render(tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match="refuses system messages"):
        rendered(tmp_path, DATED, [SYSTEM, USER], system="refuse", date="2026-01-31")
    assert rendered(tmp_path, ALTERNATING, [USER], system="refuse") == "user: Hello;"


def test_settings_reach_every_template_of_a_model(tmp_path: Path) -> None:
    several = {"default": ALTERNATING, "tool_use": DATED}
    assert rendered(tmp_path, several, [SYSTEM, USER], system="merge_into_user") == "user: Be brief.\n\nHello;"
    copy = tmp_path / "copy"
    assert "messages[0]['role']" in (copy / "additional_chat_templates" / "tool_use.jinja").read_text()
    assert "chat_template" not in json.loads((copy / "tokenizer_config.json").read_text())
