"""What a file is, by its keys or lines: every known format alone, and files as they lie in folders."""

import gzip
import json
from datetime import date
from hashlib import sha256
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.places.checks import source_faults
from pipeline.recipe.formats import Format, formats
from pipeline.recipe.sources import ExportSource, PromptsSource, RowsSource
from pipeline.recipe.traces import Traces
from pipeline.traces.detect import ROWS, UNKNOWN, FileLook, format_of, look, refuse_below_floor, wrong_kind
from pipeline.traces.records import DayReport, FileReport, Reason
from pipeline.traces.sources.prompts import Prompts
from pipeline.traces.sources.protocol import Address
from pipeline.traces.sources.shapes import steps

SPAN = {"resource": {}, "scopeSpans": [{"spans": [{"traceId": "01", "spanId": "02", "name": "chat"}]}]}
CALL = {"call_type": "completion", "messages": [], "response": {}, "startTime": 1.0, "model_group": "shop"}
EXPORTED = {"id": "o", "trace_id": "t", "type": "GENERATION", "start_time": "2026-01-05 10:00:00"}
LOG = """\
INFO 01-05 10:00:00 [logger.py:39] Received request chatcmpl-1: prompt: 'Hi'
(APIServer pid=7) INFO 01-05 10:00:01 [launcher.py:29] Route: /health
and a line that goes on
"""
TEXTS = {
    "vllm_log": LOG,
    "uvicorn_log": 'INFO:     127.0.0.1:5 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n',
    "access_log": '10.0.0.1 - ada [05/Jan/2026:10:00:00 +0000] "POST /v1/chat HTTP/1.1" 200 12\n',
    "server_log": "[GIN] 2026/01/05 - 10:00:00 | 200 | 1.2s | POST /api/chat\n",
    "sqlite": "SQLite format 3\0",
    "archive": "PK\x03\x04",
    UNKNOWN: "Dear reader,\nthis is a letter.\n",
}
ROWS_OF: dict[str, dict[str, Any]] = {
    "litellm": CALL,
    "langfuse_export": EXPORTED,
    "langfuse_scores": {"id": "s", "trace_id": "t", "name": "thumb", "source": "API", "data_type": "NUMERIC"},
    "otel": {"resourceSpans": [SPAN]},
    "otel_logs": {"resourceLogs": []},
    "otel_unwrapped": SPAN,
    "otel_snake_case": {"resource_spans": [SPAN]},
    "tempo": {"batches": [SPAN]},
    "gsm8k": {"question": "7 * 8?", "answer": "#### 56"},
    "verl": {"prompt": [{"role": "user", "content": "7 * 8?"}], "reward_model": {"ground_truth": "56"}},
    "multiple_choice": {"question": "Which is prime?", "choices": ["4", "5"], "answer": 1},
    "multiple_choice_options": {"question": "Which is prime?", "options": ["4", "5"], "answer": "B"},
    "context_questions": {"question": "Where?", "context": {"title": ["Ada"]}, "answer": "Bergen"},
    "openai_finetune_rft": {"messages": [{"role": "user", "content": "7 * 8?"}], "reference_answer": 56},
    "openai_batch_input": {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {}},
    "openai_evals": {"input": [{"role": "user", "content": "7 * 8?"}], "ideal": "56"},
    "scored_answers": {"prompt": "7 * 8?", "response": "56", "reward": 1.0},
    "corpus": {"text": "Once there was a ship."},
    UNKNOWN: {"text": "Once there was a ship.", "beam": 3},
}


def merged(one: Any, other: Any) -> Any:
    if isinstance(one, dict) and isinstance(other, dict):
        return {key: merged(one.get(key), other.get(key)) for key in one | other}
    if isinstance(one, list) and isinstance(other, list):
        return [merged(one[0], other[0])]
    return one if other is None or isinstance(one, dict | list) else other


def minimal(known: Format) -> Any:
    """A row of the keys that a format asks for, and no other."""
    row: Any = {}
    for path, value in [*((key, "x") for key in known.keys), *known.begins.items()]:
        place: Any = value
        for step in reversed(steps(path)):
            place = {step: place} if isinstance(step, str) else [place]
        row = merged(row, place)
    return row


@pytest.mark.parametrize("name", [name for name, known in formats().items() if known.keys])
def test_the_keys_of_a_format_are_no_others(name: str) -> None:
    assert format_of(minimal(formats()[name])) == name


@pytest.mark.parametrize("name", ROWS_OF)
def test_a_row_says_its_format(name: str) -> None:
    assert format_of(ROWS_OF[name]) == name


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_says_its_format_by_its_lines(name: str, tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text(TEXTS[name])
    assert look(str(tmp_path)).format == name


def test_the_formats_are_many_and_each_says_what_to_do() -> None:
    assert len(formats()) >= 25
    unread = [name for name, known in formats().items() if known.kind == "none" and not known.note]
    assert unread == []
    assert [name for name, known in formats().items() if not (known.keys or known.line)] == []


def lines(*rows: object) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def write_parquet(path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([ROWS_OF["gsm8k"]] * 250), path)


@pytest.mark.parametrize(
    ("name", "content", "expected", "rows"),
    [
        ("a.jsonl", lines(*[CALL] * 250), "litellm", ROWS),
        ("a.jsonl.gz", gzip.compress(lines(CALL, CALL)), "litellm", 2),
        ("a.json", json.dumps([CALL, CALL]).encode(), "litellm", 2),
        ("a.csv", b"step,train_loss\n1,2.5\n2,\n", "openai_results", 2),
        ("a.jsonl", lines(CALL, CALL, ROWS_OF["corpus"]), "litellm", 3),
        ("a.jsonl", lines(CALL, ROWS_OF["corpus"], ROWS_OF["otel"]), UNKNOWN, 3),
        ("a.jsonl", b"", UNKNOWN, 0),
        ("a.parquet", b"no Parquet", UNKNOWN, 1),
        ("a.jsonl.gz", gzip.compress(lines(CALL), mtime=0)[:9], UNKNOWN, 0),
    ],
)
def test_the_first_rows_of_a_file_decide(name: str, content: bytes, expected: str, rows: int, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    folder = look(str(tmp_path / name))
    assert (folder.format, folder.looks[0].rows) == (expected, rows)


def test_parquet_is_read_by_its_columns(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet")
    assert look(str(tmp_path)).looks == (FileLook("a.parquet", "gsm8k", ROWS, ROWS, ("question", "answer")),)


@pytest.mark.slow
def test_a_prefix_of_a_bucket_is_looked_into(bucket: str, tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet")
    for name in ("day=1/a.parquet", "day=2/b.parquet"):
        boto3.client("s3").upload_file(str(tmp_path / "a.parquet"), bucket, f"sums/{name}")
    folder = look(f"s3://{bucket}/sums")
    assert (folder.format, folder.rows, folder.files) == ("gsm8k", 2 * ROWS, 2)


def test_rows_that_cannot_be_read_as_they_lie_are_named(tmp_path: Path) -> None:
    (tmp_path / "pretty.jsonl").write_text(f"{json.dumps(CALL, indent=1)}\n{json.dumps(CALL, indent=1)}")
    assert look(str(tmp_path)).fault == "its objects go over several lines: `jq -c .` makes a line of each"
    (tmp_path / "pretty.jsonl").rename(tmp_path / "calls.txt")
    (tmp_path / "calls.txt").write_bytes(lines(CALL))
    assert "a name that ends in .jsonl" in look(str(tmp_path)).fault


def test_of_many_files_some_are_looked_at(tmp_path: Path) -> None:
    for n in range(50):
        (tmp_path / f"{n:02}.jsonl").write_bytes(lines(CALL))
    (tmp_path / "README.md").write_text("# Calls\n")
    folder = look(str(tmp_path))
    assert (folder.format, folder.files) == ("litellm", 51) and 10 < len(folder.looks) <= 20
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match="holds no file"):
        look(str(tmp_path / "none"))


def test_scores_belong_to_the_calls_of_their_export(tmp_path: Path) -> None:
    for name, row in (("observations_v2", EXPORTED), ("scores", ROWS_OF["langfuse_scores"]), ("more", CALL)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jsonl").write_bytes(lines(row, row) if row is EXPORTED else lines(row))
    folder = look(str(tmp_path))
    assert folder.format == "langfuse_export"
    assert [each.name for each in folder.others] == ["more/a.jsonl"]


def test_a_source_of_another_kind_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines(CALL))
    spans = ExportSource(kind="otel", uri=str(tmp_path))
    assert wrong_kind(spans).endswith(f"`pt import {tmp_path}` writes the section that reads it.")
    assert "looks like litellm (LiteLLM" in wrong_kind(spans)
    assert wrong_kind(RowsSource(uri=str(tmp_path), preset="litellm")) == ""
    assert wrong_kind(ExportSource(kind="otel", uri="/nowhere")) == ""
    (tmp_path / "a.jsonl").write_text(LOG)
    assert "vLLM's server log" in wrong_kind(spans) and "they hold no answers" in wrong_kind(spans)


def test_a_refusal_says_what_the_files_look_like(tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text(LOG)
    spans = ExportSource(kind="otel", uri=str(tmp_path))
    (fault,) = source_faults(Address(spans, spans.uri))
    assert "Move the file away." in fault and "looks like vllm_log" in fault
    (tmp_path / "server.log").unlink()
    asked = tmp_path / "asked.jsonl"
    asked.write_bytes(lines(ROWS_OF["openai_batch_input"]))
    problems = Prompts(str(asked), PromptsSource(uri=str(asked), licence="MIT", consent=True, day=date(2026, 1, 5)))
    with pytest.raises(ValueError, match=r"Name those of problem and answer.* looks like openai_batch_input"):
        list(problems.rows(problems.parts()[0], sha256()))
    file = FileReport(name="f", sha256="", bytes=1, seen=2, admitted=0, rejected={Reason.SCHEMA: 2})
    report = DayReport(day="2026-01-05", rules="", digest="", files=(file,))
    answered = Traces(source=RowsSource(uri="/nowhere", preset="openai_batch"))
    with pytest.raises(ValueError, match="Set `requests` to the batches' input files"):
        refuse_below_floor("here", [report], {"f"}, answered)
