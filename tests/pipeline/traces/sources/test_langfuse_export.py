import gzip
import hashlib
import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.storage import digest_file
from pipeline.traces.rows import Rows
from pipeline.traces.sources.langfuse import Observation, PlainRow, add, plain_trace
from pipeline.traces.sources.langfuse_export import LangfuseExport

from .conftest import all_of, observation, read, reasons, score, write

DAY = "observations_v2/2026-01-05.jsonl"


def source(export: Path) -> LangfuseExport:
    return LangfuseExport(str(export))


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_an_export_is_read(export: Path, suffix: str) -> None:
    path = write(export, DAY + suffix, [observation(1)])
    write(export, "scores/2026-01-05.jsonl", [score(1, 1, 1.0)])
    calls, scores = source(export).parts()
    assert (calls.name, calls.size, calls.holds) == (DAY + suffix, path.stat().st_size, "calls")
    assert (scores.name, scores.holds) == ("scores/2026-01-05.jsonl", "scores")
    digest = hashlib.sha256()
    (trace,) = all_of(source(export).rows(calls, digest)).traces
    assert digest.hexdigest() == digest_file(path)
    assert trace.messages == [{"role": "user", "content": "What is 1 + 1?"}]
    assert (trace.completion, trace.model, trace.line) == ("2", "m/1 a=b%", 1)
    assert (trace.input_tokens, trace.output_tokens, trace.latency_s) == (7, 3, 0.5)
    assert json.loads(trace.metadata) == {"user_consent": "true", "expected_answer": "2"}
    assert (trace.timestamp, trace.updated_at) == (datetime(2026, 1, 5, 10, 0, 1), datetime(2026, 1, 5, 11))
    assert [(s.trace_id, s.value) for s in read(source(export), scores).scores] == [("t1", 1.0)]


@pytest.mark.parametrize("damage", ["cut", "garbled"])
def test_a_broken_gzip_keeps_what_was_readable(export: Path, damage: str) -> None:
    path = write(export, DAY + ".gz", [observation(n, input=os.urandom(2000).hex()) for n in range(1, 201)])
    whole = path.read_bytes()
    half = len(whole) // 2
    path.write_bytes(whole[:half] + (b"" if damage == "cut" else b"\xff" * 64 + whole[half + 64 :]))
    digest = hashlib.sha256()
    (part,) = source(export).parts()
    rows = all_of(source(export).rows(part, digest))
    assert 0 < len(rows.traces) < 200
    assert reasons(rows)[-1].startswith("truncated_file:")
    assert damage == "garbled" or len(rows.rejected) == 1
    assert digest.hexdigest() == digest_file(path)


ROWS = [json.dumps(observation(n)).encode() + b"\n" for n in (1, 2)]


@pytest.mark.parametrize(
    ("name", "content", "traces", "counted"),
    [
        ("a.jsonl.gz", b"", 0, ["truncated_file:1:None"]),
        ("a.jsonl.gz", gzip.compress(b""), 0, []),
        ("a.jsonl.gz", gzip.compress(ROWS[0]) + gzip.compress(ROWS[1]), 2, []),
    ],
    ids=["an upload that never began", "an empty day", "two members"],
)
def test_what_is_compressed_is_read(export: Path, name: str, content: bytes, traces: int, counted: list[str]) -> None:
    write(export, f"observations_v2/{name}", []).write_bytes(content)
    rows = read(source(export))
    assert (len(rows.traces), reasons(rows)) == (traces, counted)


GOOD = json.dumps([observation(n) for n in range(1, 4)], indent=2)
PRINTED = "\n".join(json.dumps(observation(n), indent=4) for n in (1, 2))


@pytest.mark.parametrize(
    ("text", "lines", "counted"),
    [
        (f"\ufeff{GOOD}\n", [1, 2, 3], []),
        (json.dumps([observation(1), 3, "x,y", None]), [1], ["schema:2:None", "schema:3:None", "schema:4:None"]),
        (PRINTED, [1, 2], []),
        (f"{json.dumps(observation(1))}\n{{torn\n{json.dumps(observation(3))}", [1, 3], ["malformed:2:None"]),
        (f"{{torn\n{json.dumps(observation(2))}", [2], ["malformed:1:None"]),
        (GOOD[:-99], [1, 2], ["truncated_file:3:None"]),
        (json.dumps(["x" * 100]), [], ["too_long:1:None"]),
    ],
    ids=[
        "an array", "with other values", "printed", "lines", "lines of which the first is torn", "that breaks off",
        "over the limit",
    ],
)  # fmt: skip
@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_a_json_array_is_its_elements(
    export: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, text: str, lines: list[int], counted: list[str]
) -> None:
    monkeypatch.setattr("pipeline.traces.sources.lines.ARRAY", 99 if "xxx" in text else 10**6)
    content = text.encode()
    path = write(export, f"observations_v2/2026-01-05{suffix}", [])
    path.write_bytes(gzip.compress(content) if suffix.endswith(".gz") else content)
    result = read(source(export))
    assert ([trace.line for trace in result.traces], reasons(result)) == (lines, counted)


def test_other_formats_are_named_and_hidden_files_left_alone(export: Path) -> None:
    write(export, DAY, [observation(1)])
    write(export, "observations_v2/.2026-01-06.jsonl.gz.5f3a", ["{"])
    write(export, "observations_v2/_SUCCESS", [])
    assert [part.name for part in source(export).parts()] == [DAY]
    write(export, "observations_v2/2026-01-06.tsv", ["id"])
    with pytest.raises(ValueError, match=r"2026-01-06\.tsv, which is none of \.jsonl.*\.parquet\. Move the file away"):
        source(export).parts()


def test_file_that_changed_since_its_listing_is_counted(export: Path) -> None:
    for name in ("gone", "grown"):
        write(export, f"observations_v2/{name}.jsonl", [observation(1)])
    write(export, "observations_v2/gone.parquet", ["PAR1"])
    parts = source(export).parts()
    for name in ("gone.jsonl", "gone.parquet"):
        (export / "observations_v2" / name).unlink()
    write(export, "observations_v2/grown.jsonl", [observation(1), observation(2)])
    by_name = {part.name: read(source(export), part) for part in parts}
    details = [rejection.detail for rows in by_name.values() for rejection in rows.rejected]
    assert details == ["the file is gone since it was listed"] * 2 + ["the file changed since it was listed"]
    assert len(by_name["observations_v2/grown.jsonl"].traces) == 2


def parquet(path: Path, rows: list[dict[str, Any]], **columns: pa.DataType) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(rows)
    for name, kind in columns.items():
        at = table.column_names.index(name)
        table = table.set_column(at, name, pa.array([row[name] for row in rows], kind))
    pq.write_table(table, path)
    return path


@pytest.mark.parametrize("unit", ["us", "ns"])
def test_parquet_gives_the_rows_that_json_gives(export: Path, tmp_path: Path, unit: str) -> None:
    rows = [observation(n, usage_details={"input": 7, "output": 3}, unread=n) for n in range(1, 5)]
    write(export, "observations_v2/a.jsonl", rows)
    times = {k: [datetime.fromisoformat(row[k]) for row in rows] for k in ("start_time", "updated_at")}
    typed = [{**row, **{k: v[n] for k, v in times.items()}} for n, row in enumerate(rows)]
    maps = [{**row, "metadata": list(row["metadata"].items())} for row in typed]
    path = parquet(
        tmp_path / "p/observations_v2/a.parquet",
        maps,
        start_time=pa.timestamp(unit),
        updated_at=pa.timestamp(unit, "UTC"),
        metadata=pa.map_(pa.string(), pa.string()),
    )
    digest = hashlib.sha256()
    (part,) = source(tmp_path / "p").parts()
    result = all_of(source(tmp_path / "p").rows(part, digest))
    wanted = read(source(export))
    for trace in [*result.traces, *wanted.traces]:
        trace.metadata = json.loads(trace.metadata)
    assert (result.traces, result.rejected) == (wanted.traces, [])
    assert digest.hexdigest() == digest_file(path)


def test_parquet_with_other_columns_is_counted_row_by_row(export: Path) -> None:
    parquet(export / "observations_v2/a.parquet", [{"name": "x"}, {"name": "y"}])
    parquet(export / "observations_v2/b.parquet", [observation(1), observation(2, id=None)])
    rows = read(source(export))
    assert reasons(rows) == ["schema:1:None", "schema:2:None", "schema:2:None"]
    assert "missing required field `id`" in rows.rejected[0].detail
    assert [t.trace_id for t in rows.traces] == ["t1"]


ODD = [
    "None", " None ", '{"a": 1}', "{'a': 1}", "f(x=1)", "Message(content='a')", '[{"type": "text", "text": "a"}]',
    " [1]",
]  # fmt: skip
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
