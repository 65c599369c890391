"""Which of vLLM's parsers reads the calls that a model's chat template writes: vLLM takes no tools without one.

| the template's call | parser |
|---|---|
| `<tool_call>` around JSON with `name` and `arguments` (Hermes, Qwen 2.5 and 3) | `hermes` |
| `<function=name>` in `<tool_call>` (Qwen 3 Coder) | `qwen3_coder` |
| `[TOOL_CALLS]` (Mistral) | `mistral` |
| bare JSON with `name` and `parameters` (Llama 3.1 to 3.3) | `llama3_json` |

Names are those of vLLM 0.31's register. Other families have parsers too: the recipe names theirs.
"""

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
