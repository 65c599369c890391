"""Which of vLLM's parsers (names of vLLM 0.31) reads the calls that a model's chat template writes: vLLM takes no tools
without one. The recipe names those of other families."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.core.chat_template import written_call
from pipeline.core.conversation import holds_tools
from pipeline.core.template_files import folder_template

_FORMS = (
    ("hermes", re.compile(r'<tool_call>\s*\{"name": ?"probe_call"')),
    ("qwen3_coder", re.compile(r"<function=probe_call>")),
    ("mistral", re.compile(r"\[TOOL_CALLS\]")),
    ("llama3_json", re.compile(r'\{"name": ?"probe_call", ?"parameters":')),
)


def parser_of(folder: Path) -> str:
    """The parser for the chat template of a model directory; "" where its family is not known, or it has no calls."""
    template = folder_template(folder)
    text = written_call(template) if template is not None else ""
    return next((name for name, form in _FORMS if form.search(text)), "")


def parser_arguments(parser: str) -> list[str]:
    """Arguments of vLLM's server."""
    return ["--enable-auto-tool-choice", "--tool-call-parser", parser] if parser else []


def refuse_unparsed(parser: str, conversations: Iterable[Sequence[Mapping[str, Any]]]) -> None:
    """Raise ValueError for conversations with tools where no parser is known: the server would refuse each of them."""
    if not parser and any(map(holds_tools, conversations)):
        raise ValueError(
            "Questions hold tools, and how the model writes calls is not known from its chat template: set "
            "tool_call_parser of the section serving, of kind vllm, to the name of vLLM's parser for its family (the "
            "values of vLLM's --tool-call-parser), or choose kind transformers or endpoint."
        )
