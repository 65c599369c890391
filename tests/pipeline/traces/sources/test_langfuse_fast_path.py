import json
from typing import Any

import msgspec
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.recipe.traces import ExportSource, Traces
from pipeline.traces.batch import BatchBuilder
from pipeline.traces.rows import Rows, Trace
from pipeline.traces.sources.langfuse import Observation, add
from pipeline.traces.sources.langfuse_fast import PlainRow, plain_calls
from pipeline.traces.sources.lines import LineBatch

from .conftest import observation

ODD = [
    "None",
    " None ",
    '{"a": 1}',
    "{'a': 1}",
    "f(x=1)",
    "Message(content='a')",
    '[{"type": "text", "text": "a"}]',
    " [1]",
]
TEXT = st.text(max_size=8) | st.sampled_from(ODD)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool", "human", "developer"])},
    optional={"content": TEXT | st.none() | st.lists(TEXT, max_size=2), "tool_calls": st.just([{"id": "c"}])},
)
VALUE = TEXT | st.none() | st.lists(MESSAGE, max_size=3) | MESSAGE | st.lists(MESSAGE, max_size=3).map(json.dumps)
COUNTS = st.none() | st.integers(-2, 2**54) | st.sampled_from(["7", "", "x"])
PLAIN_MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool"]), "content": TEXT}
)
MOMENTS = ("2026-01-05 10:00:00", "2026-01-05T10:00:00.1234567+09:00", "2026-01-05T10:00:00Z", 1767607200, "", None)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "type": st.just("SPAN"),
    "start_time": st.sampled_from(MOMENTS[:4]),
    "updated_at": st.sampled_from(MOMENTS),
    "end_time": st.sampled_from(["2026-01-05 10:00:03.25", *MOMENTS[1:]]),
    "user_id": TEXT,
    "provided_model_name": st.none() | TEXT,
    "level": st.sampled_from(["ERROR", "", None]),
    "input": VALUE | MESSAGE.map(json.dumps),
    "output": VALUE | MESSAGE.map(json.dumps),
    "metadata": st.none() | TEXT | st.dictionaries(TEXT, TEXT) | st.dictionaries(TEXT, TEXT).map(json.dumps),
    "usage_details": st.none() | st.fixed_dictionaries({}, optional={"input": COUNTS, "output": COUNTS}),
    "name": st.none() | TEXT | st.just(7),
    "session_id": st.none() | TEXT,
    "status_message": st.none() | TEXT,
    "environment": st.none() | TEXT | st.just(3),
    "tool_definitions": st.none() | st.just({}) | st.just({"f": '{"name": "f", "parameters": {}}'}),
    "tool_calls": st.none() | st.just([]) | st.just(['{"id": "c", "function": {"name": "f", "arguments": "{}"}}']),
    "version": st.none() | st.sampled_from(["model@0123456789ab", "", 3]),
    "release": st.none() | TEXT,
    "tags": st.none() | st.lists(TEXT, max_size=2) | TEXT,
    "latency": st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(["1.5", "nan"]),
}
USUAL = {
    "input": st.lists(PLAIN_MESSAGE, max_size=3).map(json.dumps) | TEXT,
    "output": PLAIN_MESSAGE.map(json.dumps) | TEXT,
}
CHANGES = st.sets(st.sampled_from(sorted(FIELDS)), max_size=3).flatmap(
    lambda names: st.fixed_dictionaries({**USUAL, **{name: FIELDS[name] for name in names}})
)
ROW = CHANGES.map(lambda changes: observation(1, **{"usage_details": {"input": 7}, **changes}))
BUILDER = BatchBuilder(Traces(source=ExportSource(kind="langfuse_export", uri="x")), "f")


@settings(max_examples=40)
@given(st.lists(ROW, min_size=1, max_size=6))
def test_the_fast_way_reads_what_the_slow_way_reads(rows: list[dict[str, Any]]) -> None:
    block = LineBatch(1, [json.dumps(row).encode() for row in rows], [])
    fast, others = plain_calls(block)
    columns, unfit = BUILDER.batch(fast)
    assert not unfit and len(others) + len(fast) == len(rows)
    slow = [every(line, text) for line, text in block.lines() if (line, text) not in others]
    assert plain(columns) == plain(BUILDER.batch(slow)[0])
    assert list(fast) == slow
    assert not slow or fast.columns() is None, "traces that were handed out may have changed"


def test_the_draw_has_every_field() -> None:
    drawn = {*FIELDS, *USUAL, "id", "trace_id"}
    assert drawn == set(PlainRow.__struct_fields__) == set(Observation.__struct_fields__)


def test_text_that_is_no_utf8_is_refused_alone() -> None:
    by_name: dict[str, Any] = {"metadata": {"a": "b\u00e9"}, "usage_details": {}}
    rows = [json.dumps(observation(n, **by_name), ensure_ascii=False) for n in (1, 2)]
    fast, others = plain_calls(LineBatch(1, [rows[0].encode("latin-1"), rows[1].encode()], []))
    assert ([line for line, _ in others], [trace.line for trace in fast]) == ([1], [2])


def every(line: int, text: bytes) -> Trace:
    rows = Rows()
    add(rows, line, lambda: msgspec.json.decode(text, type=Observation))
    (trace,) = rows.traces
    return trace


def plain(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows of a batch; metadata is compared by what it says, for objects are written in several ways."""
    return [row | {"metadata": json.loads(row["metadata"])} for row in batch.to_pylist()]
