import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from jinja2 import TemplateError
from transformers import AutoTokenizer

from pipeline.demo import MODEL_DIR
from pipeline.models.rendering import (
    CALLS,
    DEFINITIONS,
    RESULTS,
    WITHOUT_TOOLS,
    FolderTemplate,
    folder_template,
    for_template,
    left_out,
    rendered,
    rendered_answer,
    with_tools,
)
from tests.pipeline.core.tool_templates import LOOKUP, OFFERED, TOOL_TEMPLATE, answer, calls

pytestmark = pytest.mark.slow  # its imports take seconds

USER = {"role": "user", "content": "Where is A7?"}
CALLING = {
    "role": "assistant",
    "content": "",
    "tool_calls": calls(("lookup", {"order": "A7"}), ("refund", {"euro": 3})),
}
RETURNED = [
    {"role": "tool", "content": "sent", "tool_call_id": "c0"},
    {"role": "tool", "content": "done", "tool_call_id": "c1"},
]


@pytest.fixture
def plain() -> Any:
    return AutoTokenizer.from_pretrained(MODEL_DIR, padding_side="left")


@pytest.fixture
def tokenizer(plain: Any) -> Any:
    plain.chat_template = TOOL_TEMPLATE
    return plain


def test_a_template_tells_what_it_renders(plain: Any) -> None:
    assert left_out(plain) == {DEFINITIONS, CALLS}
    plain.chat_template = TOOL_TEMPLATE
    assert not left_out(plain)
    plain.chat_template = "{{ raise_exception('no') }}"
    assert left_out(plain) == {DEFINITIONS, CALLS, RESULTS} | WITHOUT_TOOLS


def test_arguments_of_two_tools_are_each_their_own(tokenizer: Any) -> None:
    text = rendered(tokenizer, [OFFERED, USER, CALLING, *RETURNED])
    assert '{"name": "lookup", "arguments": {"order": "A7"}}' in text
    assert '{"name": "refund", "arguments": {"euro": 3}}' in text and "null" not in text
    assert json.dumps(LOOKUP) in text and "<|im_start|>tools" not in text


def test_calls_and_results_have_ids_and_names() -> None:
    unnamed = json.dumps([{"type": "function", "function": {"name": n, "arguments": "{}"}} for n in ("f", "g")])
    asked = [USER, {"role": "assistant", "content": "", "tool_calls": unnamed}]
    messages, tools = for_template([*asked, {"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}])
    assert tools is None
    assert [call["id"] for call in messages[1]["tool_calls"]] == ["call00000", "call00001"]
    assert [(m["tool_call_id"], m["name"]) for m in messages[2:]] == [("call00000", "f"), ("call00001", "g")]
    assert for_template([USER, CALLING, *RETURNED])[0][3]["name"] == "refund"


@pytest.mark.parametrize(
    ("messages", "missing"),
    [
        ([OFFERED, USER], "the definitions of tools"),
        ([USER, CALLING], "calls of tools"),
        ([USER, {"role": "assistant", "content": answer("f", {})}], "calls of tools"),
    ],
)
def test_a_template_without_tools_is_refused_by_name(messages: Any, missing: str, plain: Any) -> None:
    with pytest.raises(ValueError, match=f"chat template leaves out {missing}"):
        rendered(plain, messages)
    with pytest.raises(ValueError, match=missing):
        with_tools(plain).apply_chat_template([messages])


def test_a_call_that_is_not_whole_is_never_rendered(tokenizer: Any) -> None:
    broken = '[{"type": "function", "function": {"name": "f", "arguments": "{"}}]'
    with pytest.raises(ValueError, match="no JSON object"):
        rendered(tokenizer, [USER, {"role": "assistant", "content": "", "tool_calls": broken}])


def test_an_answer_with_calls_is_rendered_after_its_prompt(tokenizer: Any) -> None:
    text = f"I look.\n{answer('lookup', {'order': 'A7'})}"
    assert rendered_answer(tokenizer, [OFFERED, USER], text) == f"{text}<|im_end|>"
    tokenizer.chat_template = "{{ messages | length }}{{ messages[-1] }}{{ tools }}"
    with pytest.raises(ValueError, match="renders a prompt otherwise once an answer with calls follows it"):
        rendered_answer(tokenizer, [USER], text)


def test_trl_renders_each_conversation_with_its_own_tools(tokenizer: Any) -> None:
    conversations = [[OFFERED, USER, CALLING, *RETURNED], [USER]]
    texts = [rendered(tokenizer, each) for each in conversations]
    before = tokenizer.apply_chat_template([[USER], [USER, USER]], add_generation_prompt=True)
    tool_aware = with_tools(with_tools(tokenizer))
    assert tool_aware.apply_chat_template([[USER], [USER, USER]], add_generation_prompt=True) == before
    encoded = tool_aware.apply_chat_template(conversations, tools=None, add_generation_prompt=True, return_dict=True)
    assert encoded["input_ids"] == [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    held = [{**dict.fromkeys(("tool_calls", "tool_call_id", "name")), **message} for message in conversations[0]]
    assert tool_aware.apply_chat_template(held, tokenize=False, add_generation_prompt=True) == texts[0]
    assert tool_aware.apply_chat_template(conversations, tokenize=False, add_generation_prompt=True) == texts


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


def saved(folder: Path, template: str) -> Path:
    """The embedded model's tokenizer with another template and more special tokens."""
    tokenizer: Any = AutoTokenizer.from_pretrained(
        MODEL_DIR, bos_token="<begin>", extra_special_tokens={"image_token": "<image>"}
    )
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return folder


def of(folder: Path) -> Any:
    template = folder_template(folder)
    assert template is not None
    return template


@pytest.mark.parametrize("template", [TOOL_TEMPLATE, ODD_TEMPLATE])
def test_a_template_renders_as_its_tokenizer_does(template: str, tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", template)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    assert left_out(of(folder)) == left_out(tokenizer)
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
        assert of(bare).apply_chat_template([{"role": "user", "content": "x"}], tokenize=False) == "x"
    (bare / "tokenizer_config.json").write_text("{")
    with pytest.raises(ValueError, match="Save the tokenizer again"):
        folder_template(bare)


def test_what_a_template_refuses_is_raised() -> None:
    with pytest.raises(TemplateError, match="roles must alternate"):
        FolderTemplate({"default": "{{ raise_exception('roles must alternate') }}"}, {}).apply_chat_template([])
