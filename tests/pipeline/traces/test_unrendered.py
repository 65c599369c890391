"""Rows with tools before a model whose template has none: refused by name and number, before a label is paid for."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.storage import ModelRef, Store
from pipeline.demo import MODEL_DIR
from pipeline.demo.desk import MODEL_DIR as DESK_DIR
from pipeline.recipe import Selection
from pipeline.traces.unrendered import refuse_unrendered_rows
from tests.contexts import stage_context

from .conftest import Run, observation, write

pytestmark = pytest.mark.slow

USER = {"role": "user", "content": "Where is A7?"}
TOOL = {"type": "function", "function": {"name": "lookup", "parameters": {"type": "object"}}}
CALL = {"id": "c", "type": "function", "function": {"name": "lookup", "arguments": '{"order": "A7"}'}}
BROKEN = {"id": "c", "type": "function", "function": {"name": "lookup", "arguments": "{"}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RETURNED = {"role": "tool", "tool_call_id": "c", "content": "sent"}
TURNS = [USER, {"role": "assistant", "content": "Which one?"}, {"role": "user", "content": "A7."}]


def rows() -> list[dict[str, Any]]:
    return [
        observation(1),
        observation(2, input={"messages": [USER], "tools": [TOOL]}, output={"role": "assistant", "content": "Sent."}),
        observation(3, input=[USER], output=CALLING),
        observation(4, input=[USER, CALLING, RETURNED], output={"role": "assistant", "content": "It is sent."}),
        observation(5, input=[USER], output={**CALLING, "tool_calls": [BROKEN]}),
        observation(6, input=TURNS, output={"role": "assistant", "content": "Sent."}),
    ]


def refuse(store: Store, run: Run, folder: Path, tools: str = "train") -> None:
    iteration = run(champion=ModelRef(uri=str(folder), digest="c" * 64)).iteration
    selection = Selection.model_validate({"tools": tools})
    refuse_unrendered_rows(stage_context(store, selection=selection), iteration)


def template(folder: Path, text: str) -> Path:
    copied = Path(shutil.copytree(MODEL_DIR, folder))
    (copied / "chat_template.jinja").write_text(text)
    return copied


def test_rows_with_tools_are_refused_by_name_and_number(run: Run, store: Store, export: Path) -> None:
    write(export, "observations_v2/a.jsonl", rows())
    with pytest.raises(ValueError) as refused:
        refuse(store, run, MODEL_DIR)
    assert str(refused.value) == (
        f"The chat template of {MODEL_DIR} leaves out or refuses calls of tools (2 of 6 rows), the definitions of "
        "tools (1 of 6 rows): the model would be trained on conversations that it never had. Set "
        "base_model.chat.template to a file that renders them, or selection.tools to leave_out, which leaves rows with "
        "tools out."
    )
    refuse(store, run, MODEL_DIR, "leave_out")
    refuse(store, run, DESK_DIR)


def test_a_template_of_one_turn_is_refused_for_several(run: Run, store: Store, export: Path, tmp_path: Path) -> None:
    last = template(tmp_path / "last", "{{ messages[-1].content }}")
    write(export, "observations_v2/a.jsonl", rows())
    with pytest.raises(ValueError, match=r"refuses earlier turns \(1 of 6 rows\).*renders them\.$"):
        refuse(store, run, last, "leave_out")
    plain, offered = rows()[:2]
    write(export, "observations_v2/a.jsonl", [plain, {**offered, "metadata": {"user_consent": "false"}}])
    refuse(store, run, last)
    refuse(store, run, MODEL_DIR)  # a withdrawn row counts for nothing


def test_a_token_without_a_row_is_refused_by_name(
    run: Run, store: Store, export: Path, family: Callable[[str], Path]
) -> None:
    lacking = family("rowsfewer2")
    asked = [{"role": "user", "content": "What is <tool_call>?"}]
    write(export, "observations_v2/a.jsonl", [observation(1), observation(2, input=asked)])
    with pytest.raises(ValueError, match=r"has no row for <tool_call> \(1 of 2 rows\)\. Resize it"):
        refuse(store, run, lacking)
