from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from pipeline.recipe import LangfuseUiSource, Traces
from pipeline.storage import Store, digest_file
from pipeline.traces.langfuse_export import read_export
from pipeline.traces.langfuse_ui import read_ui
from pipeline.traces.materialize import materialize
from pipeline.traces.records import FileRows, Reason

from .conftest import CHAMPION, observation, score, write

DAY = "observations_v2/2026-01-05.jsonl"
REAL = Path(__file__).parents[4] / "shared/data/langfuse-traces"


def reasons(rows: FileRows) -> list[str]:
    return [f"{r.reason}:{r.line}:{r.day}" for r in rows.rejected]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_an_export_is_read(export: Path, suffix: str) -> None:
    path = write(export, DAY + suffix, [observation(1)])
    write(export, "scores/2026-01-05.jsonl", [score(1, 1, 1.0)])
    rows, scores = read_export(str(export))
    (trace,) = rows.traces
    assert rows.sha256 == digest_file(path)
    assert (rows.name, rows.named_day) == (DAY + suffix, "2026-01-05")
    assert trace.messages == [{"role": "user", "content": "What is 1 + 1?"}]
    assert (trace.completion, trace.reference, trace.model) == ("2", "2", "m/1 a=b%")
    assert (trace.input_tokens, trace.output_tokens, trace.latency_s) == (7, 3, 0.5)
    assert trace.timestamp.isoformat() == "2026-01-05T10:00:01+00:00"
    assert [(s.trace_id, s.value) for s in scores.scores] == [("t1", 1.0)]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("{", "malformed:2:2026-01-05"),
        ("\x00\x01", "malformed:2:2026-01-05"),
        ('{"input": ' + "[" * 5000, "malformed:2:2026-01-05"),
        ("[]", "schema:2:2026-01-05"),
        ('{"id": "o"}', "schema:2:2026-01-05"),
        (observation(2, id=None), "schema:2:2026-01-05"),
        (observation(2, start_time="soon"), "schema:2:2026-01-05"),
        (observation(2, latency="fast"), "schema:2:2026-01-05"),
        (observation(2, usage_details={"input": "many"}), "schema:2:2026-01-05"),
        (observation(2, type="SPAN", start_time="2026-01-09 00:00:00.000000"), "not_generation:2:2026-01-09"),
    ],
)
def test_a_row_that_is_no_trace_is_counted_with_its_line(export: Path, row: Any, reason: str) -> None:
    write(export, DAY, [observation(1), row, "", observation(3)])
    (rows,) = read_export(str(export))
    assert reasons(rows) == [reason]
    assert [t.line for t in rows.traces] == [1, 4]


def test_bytes_that_are_no_text_are_counted(export: Path) -> None:
    write(export, DAY, [observation(1)]).open("ab").write(b'{"id": "\xff"}\n')
    (rows,) = read_export(str(export))
    assert reasons(rows) == ["malformed:2:2026-01-05"]


@pytest.mark.parametrize("damage", ["cut", "garbled"])
def test_a_broken_gzip_keeps_what_was_readable(export: Path, damage: str) -> None:
    path = write(export, DAY + ".gz", [observation(n, input=os.urandom(2000).hex()) for n in range(1, 201)])
    whole = path.read_bytes()
    half = len(whole) // 2
    path.write_bytes(whole[:half] + (b"" if damage == "cut" else b"\xff" * 64 + whole[half + 64 :]))
    (rows,) = read_export(str(export))
    read = len(rows.traces)
    assert 0 < read < 200
    assert reasons(rows)[-1].startswith("truncated_file:")
    assert damage == "garbled" or len(rows.rejected) == 1
    assert rows.sha256 == digest_file(path)


def test_an_upload_that_never_began_is_not_an_empty_day(export: Path) -> None:
    write(export, DAY + ".gz", []).write_bytes(b"")
    (rows,) = read_export(str(export))
    assert reasons(rows) == ["truncated_file:1:2026-01-05"]


def test_two_gzip_members_are_one_file(export: Path) -> None:
    path = write(export, DAY + ".gz", [observation(1)])
    path.write_bytes(path.read_bytes() + gzip.compress(json.dumps(observation(2)).encode()))
    (rows,) = read_export(str(export))
    assert len(rows.traces) == 2


def test_a_missing_source_says_what_to_do(tmp_path: Path) -> None:
    for uri in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(ValueError, match=r"observations_v2/.*\.$"):
            list(read_export(str(uri)))
        with pytest.raises(ValueError, match=r"\.$"):
            list(read_ui(str(uri)))
    with pytest.raises(ValueError, match=r"Check the path, the credentials and the endpoint\.$"):
        list(read_export("nosuchscheme://bucket"))


def test_a_format_that_is_not_read_is_named(export: Path) -> None:
    write(export, DAY, [observation(1)])
    write(export, "observations_v2/2026-01-06.parquet", ["PAR1"])
    with pytest.raises(ValueError, match=r"2026-01-06\.parquet.*Export as JSONL"):
        list(read_export(str(export)))


def test_files_in_the_making_are_left_alone(export: Path) -> None:
    write(export, DAY, [observation(1)])
    write(export, "observations_v2/.2026-01-06.jsonl.gz.5f3a", ["{"])
    write(export, "observations_v2/_SUCCESS", [])
    assert [rows.name for rows in read_export(str(export))] == [DAY]


@pytest.mark.parametrize(
    ("changes", "value"),
    [
        ({"value": 0.25}, 0.25),
        ({"value": "1"}, 1.0),
        ({"value": 4, "name": "stars"}, None),
        ({"value": -1}, None),
        ({"value": None}, None),
        ({"value": 1, "data_type": "BOOLEAN"}, 1.0),
        ({"value": "false", "data_type": "BOOLEAN"}, 0.0),
        ({"value": None, "data_type": "CATEGORICAL", "string_value": "Thumbs_Up"}, 1.0),
        ({"value": None, "data_type": "CATEGORICAL", "string_value": "blue"}, None),
    ],
)
def test_a_score_is_scaled_or_it_is_null(export: Path, changes: dict[str, Any], value: float | None) -> None:
    write(export, DAY, [observation(1)])
    write(export, "scores/2026-01-05.jsonl", [{**score(1, 1, 0), **changes}])
    _, scores = read_export(str(export))
    assert [s.value for s in scores.scores] == [value]


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for key, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(key, value)
    boto3.client("s3").create_bucket(Bucket="traces")
    yield "traces"
    server.stop()


def test_an_export_in_s3_is_read_as_it_is_now(bucket: str, export: Path) -> None:
    client = boto3.client("s3")
    for day in ("2026-01-05", "2026-01-06"):
        name = f"observations_v2/{day}.jsonl.gz"
        path = write(export, name, [observation(1)])
        client.upload_file(str(path), bucket, f"prefix/{name}")
        rows = list(read_export(f"s3://{bucket}/prefix"))
        assert rows[-1].named_day == day  # a cached listing would miss the second
        assert (rows[-1].sha256, len(rows[-1].traces)) == (digest_file(path), 1)
    with pytest.raises(ValueError, match=r"\.$"):
        list(read_export("s3://no-such-bucket/prefix"))


REAL_TRACES = {
    "autogen-2025-06-06.json": ("gpt-4o", 41, 3, 0.628, "user: Say 'Hello World!'", "Hello World!"),
    "google-gemini-2025-08-01.json": ("gemini-2.5-flash", 6, 2055, 12.032, "What is Langfuse?", "**Langfuse** is an"),
    "langgraph-2025-08-22.json": ("gpt-4o-2024-08-06", 108, 51, 1.743, '"Web-Search"', 'The search for "example"'),
    "llamaindex-2025-06-05.json": ("gpt-4o", 13, 81, 2.776, "What is Langfuse?", "Langfuse is a tool"),
    "openai-agents-2025-09-30.json": ("gpt-4.1-2025-04-14", 85, 29, 1.15, "in Tokyo is sunny.", "The weather in Tokyo"),
    "openai-assistants-2024-05-29.json": ("gpt-4", 49, 40, None, "`3x + 11 = 14`", "Sure, first subtract 11"),
}


@pytest.mark.shared
@pytest.mark.skipif(not REAL.is_dir(), reason="the real Langfuse traces are not in ../shared/data")
def test_six_real_traces_are_found_and_none_is_admitted_without_consent(tmp_path: Path) -> None:
    for rows in read_ui(str(REAL)):
        last = max(rows.traces, key=lambda t: t.timestamp)
        model, tokens_in, tokens_out, latency_s, asked, answered = REAL_TRACES[rows.name]
        assert (last.model, last.input_tokens, last.output_tokens, last.latency_s) == (
            model,
            tokens_in,
            tokens_out,
            latency_s,
        )
        assert asked in json.dumps(last.messages).replace('\\"', '"')
        assert last.completion.startswith(answered)
    source = LangfuseUiSource(uri=str(REAL))
    for key in ("user_consent", "scope"):
        governed = materialize(
            Store(tmp_path / "store"),
            source,
            Traces(source=source, consent_key=key),
            export_uri=source.uri,
            champion=CHAMPION,
            model_name="tiny",
            number=0,
            recipe_digest="r",
            log=lambda line: None,
        )
        assert governed.admitted == governed.iteration.dataset.rows == 0
        assert governed.rejected == {Reason.NOT_GENERATION: 15, Reason.INTERMEDIATE: 2, Reason.CONSENT: 6}
        assert governed.seen == 23


UI = '{"trace": {"id": "t", "timestamp": "2026-01-07T00:00:00Z"}, "observations": %s}'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "malformed:1:2026-01-05"),
        ("{}", "schema:1:2026-01-05"),
        (UI % "[]", "not_generation:1:2026-01-07"),
        (UI % "[3]", "schema:1:2026-01-05"),
    ],
)
def test_a_file_that_is_no_ui_trace_is_one_counted_row(tmp_path: Path, text: str, reason: str) -> None:
    write(tmp_path, "2026-01-05.json", [text])
    (rows,) = read_ui(str(tmp_path))
    assert reasons(rows) == [reason]


def test_the_word_of_the_ui_trace_on_consent_wins(tmp_path: Path) -> None:
    trace = {"id": "t", "timestamp": "2026-01-05T00:00:00Z", "metadata": '{"user_consent": false}'}
    call = {"id": "o", "type": "GENERATION", "startTime": "2026-01-05T00:00:00Z", "metadata": {"user_consent": True}}
    write(tmp_path, "t.json", [{"trace": trace, "observations": [call]}])
    (rows,) = read_ui(str(tmp_path))
    assert [t.metadata["user_consent"] for t in rows.traces] == [False]
