import json
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.traces.rows import Rows
from pipeline.traces.sources.langfuse import Observation, PlainRow, add, plain_trace

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


@settings(max_examples=150)
@given(ROW)
def test_the_fast_way_reads_what_the_slow_way_reads(row: dict[str, Any]) -> None:
    text = json.dumps(row).encode()
    fast, rows = plain_trace(1, text), Rows()
    if fast is not None:
        add(rows, 1, lambda: msgspec.json.decode(text, type=Observation))
        (slow,) = rows.traces
        assert json.loads(fast.metadata) == json.loads(slow.metadata), "objects are written in several ways"
        assert fast == msgspec.structs.replace(slow, metadata=fast.metadata)


def test_the_draw_has_every_field() -> None:
    drawn = {*FIELDS, *USUAL, "id", "trace_id"}
    assert drawn == set(PlainRow.__struct_fields__) == set(Observation.__struct_fields__)


def test_a_usual_row_is_fast_and_text_that_is_no_utf8_is_not() -> None:
    row = observation(1, metadata={"a": "b\u00e9"}, usage_details={"input": 7})
    text = json.dumps(row, ensure_ascii=False)
    assert (plain_trace(1, text.encode()) is None, plain_trace(1, text.encode("latin-1")) is None) == (False, True)
