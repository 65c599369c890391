from __future__ import annotations

import gzip
import hashlib
import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.core.storage import digest_file
from pipeline.traces.sources.langfuse_export import LangfuseExport
from pipeline.traces.sources.protocol import SourcePart

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


@pytest.mark.parametrize("end", ["2026-01-05 10:00:04.500000", "2026-01-05T11:00:04.5+01:00"])
def test_export_latency_in_milliseconds_is_end_less_start(export: Path, end: str) -> None:
    write(export, DAY, [observation(1, latency=3500.0, end_time=end), observation(2, latency=0.25, end_time=None)])
    assert [t.latency_s for t in read(source(export)).traces] == [3.5, 0.25]


def test_the_older_export_has_its_traces_in_rows_of_their_own(export: Path) -> None:
    write(export, "observations/a.jsonl", [observation(1, metadata=None)])
    row = {"id": "t1", "user_id": "u", "session_id": "s", "updated_at": "2026-01-05 11:00:00.000000"}
    write(export, "traces/a.jsonl", [{**row, "metadata": {"user_consent": "true"}}, {**row, "id": None}])
    write(export, "scores/a.jsonl", [score(1, 1, 1.0)])
    assert [p.holds for p in source(export).parts()] == ["calls", "scores", "attributes"]
    rows = read(source(export))
    (value,) = rows.attributes
    assert (value.trace_id, value.user_id, value.session_id) == ("t1", "u", "s")
    assert (json.loads(value.metadata), value.updated_at) == ({"user_consent": "true"}, datetime(2026, 1, 5, 11))
    assert (len(rows.traces), len(rows.scores), reasons(rows)) == (1, 1, ["schema:2:None"])


def test_where_both_layouts_lie_the_newer_one_is_read(export: Path) -> None:
    for folder in ("observations", "observations_v2", "traces"):
        write(export, f"{folder}/a.jsonl", [observation(1)])
    assert [p.name for p in source(export).parts()] == ["observations_v2/a.jsonl"]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("{", "malformed:2:None"),
        ("\x00\x01", "malformed:2:None"),
        ('{"input": ' + "[" * 10_000, "malformed:2:None"),
        ('{"input": ' + "[" * 10_000 + "]" * 10_000 + "}", "malformed:2:None"),
        (json.dumps(observation(2, latency=float("nan"))), "malformed:2:None"),
        (json.dumps(observation(2, metadata={"x": float("inf")})), "malformed:2:None"),
        (json.dumps(observation(2)) * 2, "malformed:2:None"),
        ("[]", "schema:2:None"),
        ('{"id": "o"}', "schema:2:None"),
        (observation(2, id=None), "schema:2:None"),
        (observation(2, start_time="soon"), "schema:2:None"),
        (observation(2, updated_at="2026-13-01"), "schema:2:2026-01-05"),
        (observation(2, latency="fast"), "schema:2:2026-01-05"),
        (observation(2, latency="inf"), "schema:2:2026-01-05"),
        (observation(2, usage_details={"input": "many"}), "schema:2:2026-01-05"),
        (observation(2, usage_details={"input": 10**30}), "schema:2:2026-01-05"),
        (observation(2, usage_details={"input": -1}), "schema:2:2026-01-05"),
        (observation(2, input=None, output=""), "no_content:2:2026-01-05"),
        (observation(2, type="SPAN", start_time="2026-01-09 00:00:00.000000"), "not_generation:2:2026-01-09"),
    ],
)
def test_a_row_that_is_no_trace_is_counted_with_its_line(export: Path, row: Any, reason: str) -> None:
    write(export, DAY, [observation(1), row, "", observation(3)])
    rows = read(source(export))
    assert reasons(rows) == [reason]
    assert [t.line for t in rows.traces] == [1, 4]


def test_a_refusal_does_not_repeat_the_row(export: Path) -> None:
    secret = "alice@example.com"
    changes: list[dict[str, Any]] = [
        {"latency": secret},
        {"start_time": secret},
        {"usage_details": {"input": secret}},
        {"level": [secret]},
        {secret: 1, "id": 5},
    ]
    write(export, DAY, [*(observation(2, **change) for change in changes), "{" + secret])
    rows = read(source(export))
    assert len(rows.rejected) == 6
    assert not [r for r in rows.rejected if "alice" in r.detail or not r.detail]


def test_bytes_that_are_no_text_are_counted(export: Path) -> None:
    whole = json.dumps(observation(2, metadata={"x": "?"})).encode().replace(b"?", b"\xff")
    with write(export, DAY, [observation(1)]).open("ab") as file:
        file.write(b'{"id": "\xff"}\n' + whole + b"\n")
    assert reasons(read(source(export))) == ["malformed:2:None", "malformed:3:None"]


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


def test_an_upload_that_never_began_is_not_an_empty_day(export: Path) -> None:
    write(export, DAY + ".gz", []).write_bytes(b"")
    assert reasons(read(source(export))) == ["truncated_file:1:None"]


def test_an_empty_file_is_an_empty_day(export: Path) -> None:
    write(export, DAY, [])
    write(export, DAY.replace("05", "06") + ".gz", [])
    assert read(source(export)) == all_of([])


def test_two_gzip_members_are_one_file(export: Path) -> None:
    path = write(export, DAY + ".gz", [observation(1)])
    path.write_bytes(path.read_bytes() + gzip.compress(json.dumps(observation(2)).encode()))
    assert len(read(source(export)).traces) == 2


def test_zstd_is_read(export: Path) -> None:
    text = "".join(json.dumps(observation(n)) + "\n" for n in range(5000)).encode()
    packed = pa.compress(text, codec="zstd", asbytes=True)
    path = write(export, DAY + ".zst", [])
    path.write_bytes(packed)
    assert len(read(source(export)).traces) == 5000
    path.write_bytes(packed[: len(packed) // 2])
    assert reasons(read(source(export)))[0].startswith("truncated_file:")


def test_a_missing_source_says_what_to_do(tmp_path: Path) -> None:
    for uri in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(ValueError, match=r"(nowhere is not there\.|observations_v2/).*\.$"):
            source(uri).parts()
    with pytest.raises(ValueError, match=r"Check the path, the credentials and the endpoint\.$"):
        LangfuseExport("abfs://bucket")  # without its driver


def test_a_format_that_is_not_read_is_named(export: Path) -> None:
    write(export, DAY, [observation(1)])
    write(export, "observations_v2/2026-01-06.tsv", ["id"])
    with pytest.raises(ValueError, match=r"2026-01-06\.tsv.*Export as JSONL or Parquet or CSV"):
        source(export).parts()


def test_files_in_the_making_are_left_alone(export: Path) -> None:
    write(export, DAY, [observation(1)])
    write(export, "observations_v2/.2026-01-06.jsonl.gz.5f3a", ["{"])
    write(export, "observations_v2/_SUCCESS", [])
    assert [part.name for part in source(export).parts()] == [DAY]


@pytest.mark.parametrize(
    ("changes", "kind", "value", "word"),
    [
        ({"value": 0.25}, "NUMERIC", 0.25, None),
        ({"value": "1"}, "NUMERIC", 1.0, None),
        ({"value": "nan"}, "NUMERIC", None, None),
        ({"value": None}, "NUMERIC", None, None),
        ({"value": "false", "data_type": "BOOLEAN"}, "BOOLEAN", 0.0, None),
        ({"value": 0, "data_type": "CATEGORICAL", "string_value": "Thumbs_Up"}, "CATEGORICAL", 0.0, "Thumbs_Up"),
        ({"value": "blue", "data_type": "CATEGORICAL"}, "CATEGORICAL", None, "blue"),
        ({"value": 0, "data_type": "TEXT", "string_value": "Thanks!"}, "TEXT", 0.0, "Thanks!"),
        ({"value": 3, "data_type": None}, "NUMERIC", 3.0, None),
        ({"value": "good", "data_type": None}, "CATEGORICAL", None, "good"),
    ],
)
def test_a_score_is_read_as_it_is(
    export: Path, changes: dict[str, Any], kind: str, value: float | None, word: str | None
) -> None:
    write(export, DAY, [observation(1)])
    write(export, "scores/2026-01-05.jsonl", [{**score(1, 1, 0), **changes}])
    assert [(s.kind, s.value, s.word) for s in read(source(export)).scores] == [(kind, value, word)]


def test_a_score_of_no_trace_is_no_row(export: Path) -> None:
    write(export, DAY, [observation(1)])
    write(export, "scores/a.jsonl", [score(1, 1, 0, trace_id=None), score(2, 1, 0, id=None)])
    rows = read(source(export))
    assert (rows.scores, reasons(rows)) == ([], ["schema:2:None"])


def test_tool_calls_are_kept(export: Path) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "search", "arguments": '{"q": "x"}'}}
    asked = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "found"},
    ]
    write(export, DAY, [observation(1, input=json.dumps(asked)), observation(2, input=asked)])
    for trace in read(source(export)).traces:
        assert json.loads(trace.messages[1]["tool_calls"]) == [call]
        assert trace.messages[2] == {"role": "tool", "content": "found", "tool_call_id": "c"}


def test_the_columns_of_tools_are_read(export: Path) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "find", "arguments": '{"id": "A7"}'}}
    tool = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}
    texts: dict[str, Any] = {
        "tool_calls": [json.dumps(call)],
        "tool_definitions": {"find": json.dumps(tool["function"])},
    }
    rows = [
        observation(1, **texts, output=""),
        observation(2, **texts, output="One moment."),
        observation(3, output=json.dumps({"role": "assistant", "tool_calls": [call]}), **texts),
        observation(4, tool_calls=json.dumps([call]), tool_definitions=json.dumps([tool]), output=None),
        observation(5, tool_calls=[], tool_definitions={}),
    ]
    write(export, DAY, rows)
    *called, plain = sorted(read(source(export)).traces, key=lambda trace: trace.line)
    assert [(json.loads(t.tool_calls or ""), json.loads(t.tools or "")) for t in called] == [([call], [tool])] * 4
    assert [trace.completion for trace in called] == ["", "One moment.", "", ""]
    assert (plain.completion, plain.tool_calls, plain.tools) == ("6", None, None)


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
    assert isinstance(parts[0], SourcePart)
