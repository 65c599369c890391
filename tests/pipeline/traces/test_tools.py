from __future__ import annotations

from typing import Any

import pytest

from pipeline.recipe.traces import LangfuseExportSource, Traces
from pipeline.traces.batch import BatchBuilder
from pipeline.traces.sources.langfuse import Observation, trace_of
from pipeline.traces.tools import COLUMNS, calls_tools

from .conftest import observation

CALL = {"id": "c", "function": {"name": "refund", "arguments": '{"order": "A7"}'}}
USER = {"role": "user", "content": "Refund A7"}


@pytest.mark.parametrize(
    ("asked", "answered", "calls"),
    [
        ([USER], "Done", False),
        ([{"role": "system", "content": "Be brief."}, USER], {"role": "assistant", "content": "Done"}, False),
        ([USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}, USER], "Done", True),
        ([USER, {"role": "tool", "tool_call_id": "c", "content": "done"}], "Done", True),
        ([USER], {"role": "assistant", "content": "Done", "tool_calls": [CALL]}, True),
        ([USER], [{"type": "web_search_call"}, {"type": "message", "role": "assistant", "content": "Done"}], True),
        (
            [USER],
            [
                {"role": "assistant", "tool_calls": [CALL]},
                {"role": "tool", "content": "done"},
                {"role": "assistant", "content": "Done"},
            ],
            True,
        ),
    ],
)
def test_a_row_tells_whether_tools_were_called(asked: Any, answered: Any, calls: bool) -> None:
    trace: Any = trace_of(Observation(**observation(input=asked, output=answered)), 1)
    assert trace.completion == "Done"
    batch, _ = BatchBuilder(Traces(source=LangfuseExportSource(uri="x")), "f").batch([trace])
    (row,) = batch.select(list(COLUMNS)).to_pylist()
    assert calls_tools(row) is calls
