from __future__ import annotations

import json
from typing import Any

import msgspec
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.recipe.traces import LangfuseExportSource, Traces
from pipeline.traces.batch import BatchBuilder
from pipeline.traces.rows import Rejection, Rows, Trace
from pipeline.traces.sources.langfuse import Observation, add
from pipeline.traces.sources.langfuse_plain import plain_calls

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


SETTINGS = Traces(source=LangfuseExportSource(uri="x"))


@settings(max_examples=40)
@given(st.lists(ROW, min_size=1, max_size=6))
def test_the_fast_way_reads_what_the_slow_way_reads(rows: list[dict[str, Any]]) -> None:
    texts = [json.dumps(row).encode() for row in rows]
    slow = [every(line, text) for line, text in enumerate(texts, 1)]
    fast, rejected = plain_calls(texts, 1, every)
    builder = BatchBuilder(SETTINGS, "f")
    columns, unfit = builder.batch(fast)
    assert rejected == [row for row in slow if isinstance(row, Rejection)]
    assert (plain(columns), unfit) == (plain(builder.batch(list(fast))[0]), [])
    assert list(map(whole, fast)) == [whole(row) for row in slow if isinstance(row, Trace)]
    assert fast.columns() is None, "traces that were handed out may have changed"


def test_text_that_is_no_utf8_is_refused_alone() -> None:
    rows = [json.dumps(observation(n, metadata={"a": "b\u00e9"}), ensure_ascii=False) for n in (1, 2)]
    texts = [rows[0].encode("latin-1"), rows[1].encode()]
    fast, rejected = plain_calls(texts, 1, every)
    assert ([row.line for row in rejected], [trace.line for trace in fast]) == ([1], [2])


def every(line: int, text: bytes) -> Trace | Rejection:
    rows = Rows()
    add(rows, line, lambda: msgspec.json.decode(text, type=Observation))
    (row,) = (*rows.traces, *rows.rejected)
    return row


def plain(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows of a batch; metadata is compared by what it says, for objects are written in several ways."""
    return [row | {"metadata": json.loads(row["metadata"])} for row in batch.to_pylist()]


def whole(trace: Trace) -> Trace:
    return msgspec.structs.replace(trace, metadata=json.loads(trace.metadata))
