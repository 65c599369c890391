"""Which parser vLLM is started with, by the calls that a chat template writes."""

import shutil
from pathlib import Path

import pytest

from pipeline.demo import MODEL_DIR
from pipeline.demo.desk import MODEL_DIR as DESK_DIR
from pipeline.recipe.serving import VllmServing
from pipeline.serving.vllm_engine import parser_arguments, parser_of, refuse_unparsed
from tests.pipeline.core.tool_templates import OFFERED, TOOL_TEMPLATE

CALL = """\
{% for message in messages %}{{ message.content }}
{% for call in message.tool_calls or [] %}CALL{% endfor %}{% endfor %}"""
NAME, ARGUMENTS = "' + call.function.name + '", "{{ call.function.arguments | tojson }}"
USER = {"role": "user", "content": "Where is A7?"}


@pytest.mark.parametrize(
    ("call", "parser"),
    [
        ('{{ \'{"name": "NAME", "parameters": \' }}ARGUMENTS}', "llama3_json"),
        ("[TOOL_CALLS] [{{ call.function | tojson }}]", "mistral"),
        ("{{ '[TOOL_CALLS]NAME[ARGS]' }}ARGUMENTS", "mistral"),
        ("<tool_call>\n{{ '<function=NAME>' }}\nARGUMENTS</function></tool_call>", "qwen3_coder"),
        ('{{ \'<tool_call>\n{"name": "NAME", "arguments": \' }}ARGUMENTS}</tool_call>', "hermes"),
        ("{{ 'to=NAME ' }}ARGUMENTS", ""),
        ("{{ call.function.name }}", ""),
    ],
)
def test_a_parser_follows_from_how_calls_are_written(call: str, parser: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(MODEL_DIR, tmp_path / "model"))
    written = call.replace("NAME", NAME).replace("ARGUMENTS", ARGUMENTS)
    (folder / "chat_template.jinja").write_text(CALL.replace("CALL", written))
    assert parser_of(folder) == parser


def test_the_embedded_templates_have_the_parsers_they_need(tmp_path: Path) -> None:
    assert (parser_of(MODEL_DIR), parser_of(DESK_DIR)) == ("", "hermes")
    folder = Path(shutil.copytree(MODEL_DIR, tmp_path / "model"))
    (folder / "chat_template.jinja").write_text(TOOL_TEMPLATE)
    assert parser_arguments(parser_of(folder)) == ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    assert parser_arguments("") == []


def test_tools_without_a_parser_are_refused_with_the_field() -> None:
    with pytest.raises(ValueError, match="set tool_call_parser of the section serving, of kind vllm"):
        refuse_unparsed("", [[USER], [OFFERED, USER]])
    refuse_unparsed("", [[USER]])
    refuse_unparsed("hermes", [[OFFERED, USER]])
    with pytest.raises(ValueError, match="tool_call_parser"):
        VllmServing(tool_call_parser="hermes --trust-remote-code")
