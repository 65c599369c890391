"""Logged calls by declared paths, from files of each format."""

import csv
import gzip
import io
import json
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from pipeline.recipe.sources import RowsSource
from pipeline.traces.rows import Rows
from pipeline.traces.sources.rows import RowFiles

from .conftest import read, reasons

FIELDS = {"prompt": "q", "completion": "a", "time": "at"}
AT = "2026-01-05T10:00:00Z"


def section(uri: Path, fields: dict[str, Any] | None = None, **more: Any) -> RowsSource:
    return RowsSource(uri=str(uri), fields={**FIELDS, **(fields or {})}, **more)


def rows_of(path: Path, fields: dict[str, Any] | None = None, **more: Any) -> Rows:
    source = section(path, fields, **more)
    return read(RowFiles(source.uri, source))


def lines(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text(
        "".join(f"{json.dumps({'q': 'Hi', 'a': 'Yes', 'at': AT, **row})}\n" for row in rows), encoding="utf-8"
    )
    return path


def of_lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def of_csv(rows: list[dict[str, Any]]) -> bytes:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]))
    writer.writeheader()
    for row in rows:
        writer.writerow({key: each if isinstance(each, str) else json.dumps(each) for key, each in row.items()})
    return b"\xef\xbb\xbf" + out.getvalue().encode()


def of_parquet(rows: list[dict[str, Any]]) -> bytes:
    out = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows), out)
    return out.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("a.jsonl", of_lines),
        ("a.ndjson.gz", lambda rows: gzip.compress(of_lines(rows))),
        ("lines.json", of_lines),
        ("array.json", lambda rows: json.dumps(rows, indent=1).encode()),
        ("listed.json", lambda rows: json.dumps({"object": "list", "data": rows}).encode()),
        ("a.csv", of_csv),
        ("a.parquet", of_parquet),
    ],
)
def test_a_row_is_the_same_in_each_format(
    tmp_path: Path, name: str, write: Callable[[list[dict[str, Any]]], bytes]
) -> None:
    request = {"messages": [{"role": "user", "content": 'Say "a,b"\nand c'}], "temperature": 0.5}
    rows = [
        {"id": f"r{n}", "request": request, "answer": {"text": "Yes"}, "at": AT, "ms": 1500, "meta": {"consent": True}}
        for n in (1, 2)
    ]
    (tmp_path / name).write_bytes(write(rows))
    fields = {"prompt": "request.messages", "completion": "answer.text", "id": "id", "metadata": "meta"}
    one, two = rows_of(tmp_path, {**fields, "latency_ms": "ms"}).traces
    assert (one.trace_id, one.observation_id, two.observation_id) == ("r1", "r1", "r2")
    assert one.messages == [{"role": "user", "content": 'Say "a,b"\nand c'}]
    assert (one.completion, one.latency_s, one.timestamp) == ("Yes", 1.5, datetime(2026, 1, 5, 10))
    assert json.loads(one.metadata) == {"consent": True}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("a.b", 1),
        ("a.c[0].d", 2),
        ("a.c[-1].d", 3),
        ("text.b", 4),
        ("with.dots", 5),
        (("none", "a.c[7]", "empty", "text.b"), 4),
    ],
)
def test_a_path_leads_through_lists_and_json_in_text(tmp_path: Path, path: Any, value: int) -> None:
    row = {"a": {"b": 1, "c": [{"d": 2}, {"d": 3}]}, "text": '{"b": 4}', "with.dots": 5, "empty": ""}
    (trace,) = rows_of(lines(tmp_path / "a.jsonl", row), {"input_tokens": path}).traces
    assert trace.input_tokens == value


def test_an_id_is_the_rows_own_or_its_content(tmp_path: Path) -> None:
    rows = [{"id": 0}, {"id": None}, {}, {"q": "Ho"}, {"id": "x", "trace": 7}, {"id": {"a": 1}}]
    result = rows_of(lines(tmp_path / "a.jsonl", *rows), {"id": "id", "trace": "trace"})
    ids = [(trace.trace_id, trace.observation_id) for trace in result.traces]
    assert ids[0] == ("0", "0") and ids[4] == ("7", "x")
    assert ids[2][0].startswith("row-") and ids[2][0] == ids[2][1] != ids[3][0]
    assert reasons(result) == ["schema:6:2026-01-05"], "an object names nothing"


@pytest.mark.parametrize(
    ("row", "failed"),
    [
        ({}, False),
        *(({"status": status}, False) for status in ("success", "OK", 200, "201", 200.0, "200.0", True, None, "")),
        *(({"status": status}, True) for status in ("failure", "whatever", 500, "404", 0, False, {"code": 200})),
        *(({"error": error}, False) for error in (None, "", {}, [], False, "{}", "null")),
        *(({"error": error, "status": 200}, True) for error in ("no", {"code": 1}, '{"code": 1}')),
    ],
)
def test_what_is_not_called_good_failed(tmp_path: Path, row: dict[str, Any], failed: bool) -> None:
    (trace,) = rows_of(lines(tmp_path / "a.jsonl", row), {"status": "status", "error": "error"}).traces
    assert (trace.level == "ERROR") == failed


def test_rows_without_what_a_trace_needs_are_counted(tmp_path: Path) -> None:
    rows = [{"q": None, "a": None}, {"at": None}, {"at": "soon"}, {"n": -1}, {"q": None}, {"a": None}]
    result = rows_of(lines(tmp_path / "a.jsonl", *rows), {"input_tokens": "n"})
    assert reasons(result) == [
        "no_content:1:2026-01-05", "schema:2:None", "schema:3:None", "schema:4:2026-01-05",
    ]  # fmt: skip
    assert [(trace.messages == [], trace.completion) for trace in result.traces] == [(True, "Yes"), (False, "")]


def test_rows_without_a_time_have_the_declared_day(tmp_path: Path) -> None:
    (trace,) = rows_of(lines(tmp_path / "a.jsonl", {"at": None}), day=date(2026, 2, 1)).traces
    assert trace.timestamp == datetime(2026, 2, 1)


def test_tools_and_a_system_message_may_stand_apart(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    row = {"sys": [{"type": "text", "text": "Be brief."}], "tools": json.dumps([tool])}
    (trace,) = rows_of(lines(tmp_path / "a.jsonl", row), {"system": "sys", "tools": "tools"}).traces
    assert [message["role"] for message in trace.messages] == ["system", "user"]
    assert json.loads(trace.tools or "") == [tool]


def test_scores_come_in_three_shapes(tmp_path: Path) -> None:
    rows = [
        {"id": "1", "s": {"stars": 4, "tone": "kind"}},
        {"id": "2", "s": [{"key": "stars", "score": 2}, {"name": "liked", "value": True}, 7]},
        {"id": "3", "s": {"name": "stars", "value": "3"}, "liked": "0"},
    ]
    result = rows_of(lines(tmp_path / "a.jsonl", *rows), {"id": "id", "scores": ["s", "liked"]})
    assert [(s.trace_id, s.name, s.value, s.word, s.kind) for s in result.scores] == [
        ("1", "stars", 4.0, None, "NUMERIC"), ("1", "tone", None, "kind", "CATEGORICAL"),
        ("2", "stars", 2.0, None, "NUMERIC"), ("2", "liked", 1.0, None, "BOOLEAN"),
        ("3", "stars", 3.0, "3", "NUMERIC"), ("3", "liked", 0.0, "0", "NUMERIC"),
    ]  # fmt: skip


def test_metadata_is_merged_and_the_licence_joins_it(tmp_path: Path) -> None:
    row = {"meta": '{"consent": true, "k": [1]}', "region": "eu", "consent": False, "none": None}
    paths = ["meta", "region", "consent", "none"]
    (trace,) = rows_of(lines(tmp_path / "a.jsonl", row), {"metadata": paths}, licence="own").traces
    assert json.loads(trace.metadata) == {"consent": False, "k": [1], "region": "eu", "licence": "own"}


def test_answers_are_joined_with_their_requests(tmp_path: Path) -> None:
    answers = lines(tmp_path / "out.jsonl", *({"a": f"A{n}", "q": None, "k": n} for n in (1, 2, None)))
    asked = [{"k": 1, "body": {"messages": [{"role": "user", "content": "Q1"}]}}, {"k": None, "body": "Q0"}]
    (tmp_path / "in.jsonl").write_bytes(of_lines(asked))
    source = section(answers, {"prompt": "body", "key": "k"}, requests=str(tmp_path / "in.jsonl"))
    files = RowFiles(source.uri, source)
    (part,) = files.parts()
    result = read(files, part)
    assert [(trace.messages[0]["content"], trace.completion) for trace in result.traces] == [("Q1", "A1")]
    assert [rejection.detail for rejection in result.rejected] == ["no request has its key"] * 2
    (tmp_path / "in.jsonl").write_bytes(of_lines([*asked, {"k": 2, "body": "Q2"}]))
    (later,) = files.parts()
    assert later.version != part.version
    assert len(read(files, later).traces) == 2
    (tmp_path / "in.jsonl").write_bytes(of_lines([*asked, *asked, {"k": 1, "body": "another batch's"}]))
    details = [rejection.detail for rejection in read(files, files.parts()[0]).rejected]
    assert details == ["several requests have its key", *["no request has its key"] * 2]


def test_types_of_parquet_become_plain(tmp_path: Path) -> None:
    row = {
        "q": b"Hi", "a": "Yes", "at": date(2026, 1, 5), "id": UUID(int=1).bytes, "n": Decimal("7"),
        "took": timedelta(seconds=2), "meta": [("k", b"v")], "tags": [b"a", None], "price": Decimal("0.25"),
    }  # fmt: skip
    types = {"meta": pa.map_(pa.string(), pa.binary()), "tags": pa.list_(pa.binary())}
    columns = {name: pa.array([value], types.get(name)) for name, value in row.items()}
    pq.write_table(pa.table({**columns, "id": pa.array([row["id"]], pa.uuid())}), tmp_path / "a.parquet")
    fields = {"id": "id", "input_tokens": "n", "latency_s": "took", "metadata": ["meta", "tags", "price"]}
    (trace,) = rows_of(tmp_path, fields).traces
    assert (trace.observation_id, trace.input_tokens, trace.latency_s) == (str(UUID(int=1)), 7, 2.0)
    assert trace.timestamp == datetime(2026, 1, 5)
    assert json.loads(trace.metadata) == {"k": "v", "tags": ["a", None], "price": 0.25}


@pytest.mark.parametrize("kind", ["map", "list", "struct", "plain"])
def test_bytes_that_are_no_text_reject_their_row(tmp_path: Path, kind: str) -> None:
    types = {
        "map": pa.map_(pa.binary(), pa.binary()), "list": pa.list_(pa.binary()),
        "struct": pa.struct([("k", pa.large_binary())]), "plain": pa.binary(),
    }  # fmt: skip
    values: list[dict[str, Any]] = [
        {"map": [(b"k", text)], "list": [text], "struct": {"k": text}, "plain": text} for text in (b"fine", b"\xff")
    ]
    texts = {"q": ["Hi", "Hi"], "a": ["Yes", "Yes"], "at": [datetime(2026, 1, 5, tzinfo=UTC)] * 2}
    odd = pa.array([value[kind] for value in values], types[kind])
    pq.write_table(pa.table({**texts, "m": odd}), tmp_path / "a.parquet")
    result = rows_of(tmp_path, {"metadata": "m"})
    assert (len(result.traces), reasons(result)) == (1, ["malformed:2:None"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "give uri, where the files are, or query"),
        ({"uri": "x", "query": "SELECT 1"}, "give uri, where the files are, or query"),
        ({"uri": "x"}, "nothing says where a row has its prompt and its completion. `pt import`"),
        ({"uri": "x", "fields": {"prompt": "q"}}, "where a row has its completion"),
        ({"query": "SELECT 1", "fields": FIELDS}, "give since, the first day"),
        ({"uri": "x", "only": {"type": "("}}, "only.type is no regular expression"),
        ({"uri": "x", "preset": "nothing"}, "there is no preset nothing of kind rows. Known: .*litellm"),
        ({"uri": "x", "fields": {**FIELDS, "prompt": ""}}, "fields.prompt"),
        ({"uri": "x", "fields": {**FIELDS, "promt": "q"}}, "fields.promt"),
    ],
)
def test_a_section_that_does_not_say_what_a_row_has(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        RowsSource.model_validate(changes)


CELLS = 'q,a,at\nHi,Yes,2026-01-05\n"Ho\nho",No,2026-01-05\n'
LINE = '{"q": "Hi", "a": "Yes", "at": "2026-01-05"}'


@pytest.mark.parametrize(
    ("name", "content", "traces", "rejections"),
    [
        ("empty.jsonl", "", 0, []),
        ("empty.jsonl.gz", "", 0, ["truncated_file:1: the file is empty: an upload that never began"]),
        ("empty.csv", "", 0, ["truncated_file:1: the rest is not read: the file is empty: .*"]),
        ("empty.json", "", 0, ["truncated_file:1: the JSON breaks off or is damaged: the file is empty.*"]),
        ("empty.parquet", "", 0, ["truncated_file:1: the Parquet file is damaged"]),
        ("header.csv", "q,a,at\n", 0, []),
        ("torn.json", f"[{LINE},\n {LINE}, {LINE[:-5]}", 2, ["truncated_file:3: the JSON breaks off .*"]),
        ("torn.jsonl", f"{LINE}\n{LINE[:-5]}", 1, ["malformed:2: .*"]),
        ("torn.csv", f'{CELLS}"Hey', 2, ["truncated_file:5: the rest is not read: unexpected end of data"]),
        ("short.csv", f"{CELLS}Hey,Yes\nHu,No,2026-01-05,more\nOh,Ah,2026-01-05\n", 3, ["malformed.*"] * 2),
        ("latin.csv", CELLS.replace("No", "N\xf6"), 1, ["truncated_file:3: the rest is not read: 'utf-8' .*"]),
        ("number.json", "7", 0, ["truncated_file:1: .*"]),
    ],
)
def test_a_file_that_breaks_off_says_what_was_lost(
    tmp_path: Path, name: str, content: str, traces: int, rejections: list[str]
) -> None:
    (tmp_path / name).write_text(content, encoding="latin-1")
    result = rows_of(tmp_path)
    shown = [f"{each.reason}:{each.line}: {each.detail}" for each in result.rejected]
    assert len(result.traces) == traces
    assert len(shown) == len(rejections) and all(map(re.fullmatch, rejections, shown)), shown


def test_other_rows_are_no_calls(tmp_path: Path) -> None:
    rows = [{"type": "llm"}, {"type": "tool"}, {}, {"type": "llm", "meta": '{"kind": 7}'}]
    result = rows_of(lines(tmp_path / "a.jsonl", *rows), only={"type": "^LLM$", "meta.kind": "7|^$"})
    assert [trace.line for trace in result.traces] == [1, 4]
    assert reasons(result) == ["not_generation:2:None", "not_generation:3:None"]


def test_many_small_files_of_a_folder_are_one_part(tmp_path: Path) -> None:
    for n in range(150):
        (tmp_path / f"{n:03}.json").write_text(json.dumps({"q": "Hi", "a": "Yes", "at": AT, "id": f"r{n}"}))
    (tmp_path / "003.json").write_text("{")
    (tmp_path / "2026-01-05.json").write_text(" ")
    lines(tmp_path / "large.jsonl", *[{"q": "x" * 100}] * 2_500)
    source = RowFiles(str(tmp_path), section(tmp_path, {"id": "id"}))
    part, large = source.parts()
    assert (large.name, part.name, len(part.files)) == ("large.jsonl", "files from 1", 151)
    (tmp_path / "149.json").unlink()
    result = read(source, part)
    assert [(trace.trace_id, trace.line) for trace in result.traces[2:4]] == [("r2", 3), ("r4", 5)]
    assert reasons(result) == ["malformed:4:None", "truncated_file:150:None", "truncated_file:151:2026-01-05"]
    (tmp_path / "999.json").write_text("{}")
    assert source.parts()[0].version != part.version
