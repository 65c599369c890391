from __future__ import annotations

import json
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.traces.sources.langfuse import Observation, trace_of, usual_call

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


@settings(max_examples=120)
@given(ROW)
def test_the_fast_way_reads_what_the_slow_way_reads(row: dict[str, Any]) -> None:
    text = json.dumps(row).encode()
    try:
        fast = usual_call(text, 1)
    except (ValueError, RecursionError):
        fast = None
    if fast is None:
        return
    slow = trace_of(msgspec.json.decode(text, type=Observation), 1)
    for result in (fast, slow):
        if hasattr(result, "metadata"):
            result.metadata = json.loads(result.metadata)
    assert fast == slow
