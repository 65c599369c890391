"""Templates rendered without a tokenizer: as transformers renders them, to the letter."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jinja2 import TemplateError
from transformers import AutoTokenizer

from pipeline.core.chat_template import FolderTemplate, folder_template, rendered, support_of
from pipeline.demo import MODEL_DIR
from pipeline.demo.desk import MODEL_DIR as DESK_DIR
from tests.pipeline.core.tool_templates import OFFERED, TOOL_TEMPLATE, calls

ROOT = Path(__file__).parents[3]
CONVERSATIONS: list[list[dict[str, str]]] = [
    [{"role": "user", "content": "Größe <b> & 東京?"}],
    [
        OFFERED,
        {"role": "user", "content": "Where is A7?"},
        {"role": "assistant", "content": "", "tool_calls": calls(("lookup", {"order": "Ä<7>"}), ("f", {}))},
        {"role": "tool", "content": "sent", "tool_call_id": "c0"},
        {"role": "tool", "content": "done", "tool_call_id": "c1"},
        {"role": "assistant", "content": "It is sent."},
        {"role": "user", "content": "Thanks?"},
    ],
]
ODD_TEMPLATE = """\
{{ bos_token }}{{ image_token }}{{ nothing_here }}
{% for message in messages %}
    {% if message.role == 'tool' %}{% continue %}{% endif %}
    {% if message.role == 'assistant' %}{% generation %}{{ message.content or '-' }}{{ eos_token }}{% endgeneration %}
    {% else %}
{{ message | tojson(indent=2) }}
    {% endif %}
{% endfor %}
{{ strftime_now('%Y') }}{{ tools | tojson }}{% if add_generation_prompt %}go{% endif %}"""


def saved(folder: Path, template: str | dict[str, str]) -> Path:
    """The embedded model's tokenizer with another template and more special tokens."""
    tokenizer: Any = AutoTokenizer.from_pretrained(
        MODEL_DIR, bos_token="<begin>", extra_special_tokens={"image_token": "<image>"}
    )
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return folder


def of(folder: Path) -> FolderTemplate:
    template = folder_template(folder)
    assert template is not None
    return template


@pytest.mark.parametrize(
    "template", [TOOL_TEMPLATE, ODD_TEMPLATE, {"default": ODD_TEMPLATE, "tool_use": TOOL_TEMPLATE}]
)
def test_a_template_renders_as_its_tokenizer_does(template: Any, tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", template)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    assert support_of(of(folder)) == support_of(tokenizer)
    for messages in CONVERSATIONS:
        try:
            expected = rendered(tokenizer, messages)
        except ValueError as error:
            with pytest.raises(ValueError, match=str(error)):
                rendered(of(folder), messages)
        else:
            assert rendered(of(folder), messages) == expected


def test_a_template_of_an_older_config_is_read(tmp_path: Path) -> None:
    bare = Path(shutil.copytree(MODEL_DIR, tmp_path / "bare"))
    (bare / "chat_template.jinja").unlink()
    assert folder_template(bare) is None
    config = json.loads((bare / "tokenizer_config.json").read_text())
    for written in ("{{ messages[0].content }}", [{"name": "default", "template": "{{ messages[0].content }}"}]):
        (bare / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": written}))
        assert of(bare).apply_chat_template([{"role": "user", "content": "x"}]) == "x"
        tokenizer: Any = AutoTokenizer.from_pretrained(bare)
        assert tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False) == "x"
    (bare / "tokenizer_config.json").write_text("{")
    with pytest.raises(ValueError, match="Save the tokenizer again"):
        folder_template(bare)


def test_several_templates_without_a_default_are_refused() -> None:
    with pytest.raises(TemplateError, match=r"templates \(rag\), and none is the default"):
        FolderTemplate({"rag": ""}, {}).apply_chat_template([])
    with pytest.raises(TemplateError, match="roles must alternate"):
        FolderTemplate("{{ raise_exception('roles must alternate') }}", {}).apply_chat_template([])


@pytest.mark.slow
def test_a_look_at_a_template_imports_nothing_heavy() -> None:
    code = (
        "import sys; from pathlib import Path; from pipeline.core.chat_template import support_of;"
        "from pipeline.core.chat_template import folder_template;"
        f"print(all(support_of(folder_template(Path({str(DESK_DIR)!r})))));"
        "print([m for m in ('torch', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "[]"]
