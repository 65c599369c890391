"""Raw exports written anew without a person, in every format that a source reads."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from pipeline.erasure.identifiers import Identifiers
from pipeline.erasure.raw import owned, raw_files, rewrite, shared, values
from pipeline.erasure.search import search
from pipeline.erasure.units import RecordTest
from pipeline.storage import Store
from pipeline.traces.sources.langfuse_export import LangfuseExport
from pipeline.traces.sources.otel import Otel
from pipeline.unfinished import append, held, replacing

ANN, BOB = "user-ann-0001", "user-bob-0002"
Record = dict[str, Any]


def record(user: str, number: int, text: str = "hello") -> Record:
    ids = {"id": f"observation-{user}-{number}", "trace_id": f"trace-{number:08d}-{user[5:8]}"}
    metadata = json.dumps({"consent": "true", "note": text})
    model = {"type": "GENERATION", "provided_model_name": "m", "input": text, "output": f"answer {number}"}
    return {**ids, "user_id": user, "start_time": f"2026-01-05 0{number}:00:00.000000", **model, "metadata": metadata}


RECORDS = [record(ANN, 1, "a secret"), record(BOB, 2), record(BOB, 3, f"ask {ANN} about it"), record(ANN, 4, "more")]


def lines(records: Sequence[Record]) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in records)


def array(records: Sequence[Record]) -> bytes:
    return json.dumps(list(records), indent=1).encode()


def table(records: Sequence[Record]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(records[0]))
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue().encode()


def columns(records: Sequence[Record]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(records)), sink, row_group_size=2)
    return sink.getvalue()


def span(each: Record) -> Record:
    digest = hashlib.sha256(each["trace_id"].encode()).hexdigest()
    named = {"user.id": each["user_id"], "gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
    texts = {"input": each["input"], "output": each["output"]}
    roles = {"input": ("gen_ai.input.messages", "user"), "output": ("gen_ai.output.messages", "assistant")}
    for key, text in texts.items():
        name, role = roles[key]
        named[name] = json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]}])
    return {
        "traceId": digest[:32],
        "spanId": digest[:16],
        "startTimeUnixNano": str(int(datetime(2026, 1, 5, tzinfo=UTC).timestamp()) * 10**9),
        "attributes": [{"key": key, "value": {"stringValue": value}} for key, value in named.items()],
    }


def request(records: Sequence[Record]) -> Record:
    """One request with spans of everybody, and a span of Ann's first trace that names nobody."""
    below = {**span(records[0]), "spanId": "f" * 16, "attributes": []}
    return {"resourceSpans": [{"scopeSpans": [{"spans": [*map(span, records), below]}]}]}


def otlp(records: Sequence[Record]) -> bytes:
    return json.dumps(request(records)).encode() + b"\n"


def protobuf(records: Sequence[Record]) -> bytes:
    """ParseDict takes ids in base64."""
    value = json.loads(json.dumps(request(records)), object_hook=_with_base64)
    return ParseDict(value, ExportTraceServiceRequest()).SerializeToString()


def _with_base64(value: Record) -> Record:
    import base64

    ids = {key: base64.b64encode(bytes.fromhex(value[key])).decode() for key in ("traceId", "spanId") if key in value}
    return {**value, **ids}


def framed(records: Sequence[Record]) -> bytes:
    packed: Any = pa.compress(protobuf(records), codec="zstd", asbytes=True)
    return len(packed).to_bytes(4, "big") + packed


def gz(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


def zst(content: bytes) -> bytes:
    packed: Any = pa.compress(content, codec="zstd", asbytes=True)
    return packed


def plain(content: bytes) -> bytes:
    return content


LANGFUSE: dict[str, Callable[[Sequence[Record]], bytes]] = {
    "a.jsonl": lines,
    "a.ndjson": lines,
    "a.json": array,
    "a.csv": table,
    "a.parquet": columns,
}
OTLP: dict[str, Callable[[Sequence[Record]], bytes]] = {
    "a.jsonl": otlp,
    "whole.json": otlp,
    "a.pb": protobuf,
    "a.bin": protobuf,
    "b.pb": framed,
}
PACKED: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "plain": ("", plain),
    "gz": (".gz", gz),
    "zst": (".zst", zst),
    "gzip under a plain name": ("", gz),
    "zstd under a plain name": ("", zst),
    "zstd under gz": (".gz", zst),
}
CASES = [
    (source, name, how)
    for source, names in (("langfuse", LANGFUSE), ("otlp", OTLP))
    for name in names
    for how in (("plain",) if name.endswith(".parquet") else PACKED)
]


def erased(store: Store, *, since: datetime | None = None) -> list[str]:
    test, files = RecordTest(Identifiers([ANN]), since), raw_files(store)
    own = owned(files, test)
    identifiers = test.identifiers.with_rows(own.rows)
    test = RecordTest(identifiers.with_rows((), shared(files, identifiers)), since)
    return [str(change) for path in files for change in rewrite(store, path, test, own.heads)]


def rows(store: Store, source: str) -> list[tuple[str | None, str]]:
    reader = LangfuseExport(str(store.path("raw"))) if source == "langfuse" else Otel(str(store.path("raw")))
    blocks = [block for part in reader.parts() for block in reader.rows(part, hashlib.sha256())]
    assert not [each for block in blocks for each in block.rejected if each.reason != "not_generation"]
    return [(row.user_id, row.messages[0]["content"]) for block in blocks for row in block.traces]


def place(store: Store, source: str, name: str, how: str, records: Sequence[Record] = RECORDS) -> Path:
    suffix, pack = PACKED[how]
    folder = store.path("raw", "observations_v2") if source == "langfuse" else store.path("raw")
    folder.mkdir(parents=True)
    path = folder / f"{name}{suffix}"
    path.write_bytes(pack((LANGFUSE if source == "langfuse" else OTLP)[name](records)))
    return path


@pytest.mark.parametrize(("source", "name", "how"), CASES)
def test_a_person_leaves_every_format(tmp_path: Path, source: str, name: str, how: str) -> None:
    store = Store(tmp_path)
    path = place(store, source, name, how)
    before, head = rows(store, source), path.read_bytes()[:2]
    assert [user for user, _ in before] == [ANN, BOB, BOB, ANN]
    gone = 2 if source == "langfuse" else 3
    assert erased(store) == [f"{path.relative_to(store.root)}: {gone} lines, 1 names"]
    assert rows(store, source) == [(BOB, "hello"), (BOB, "ask [erased] about it")]
    assert search(store, Identifiers([ANN])).remains == ()
    assert path.read_bytes()[:2] == head or how == "plain", "its compression stays"
    assert erased(store) == [], "twice is once"


@pytest.mark.parametrize("name", [*LANGFUSE, *OTLP])
def test_a_file_of_others_alone_keeps_every_byte(tmp_path: Path, name: str) -> None:
    store = Store(tmp_path)
    path = place(store, "langfuse" if name in LANGFUSE else "otlp", name, "plain", RECORDS[1:2])
    before = path.read_bytes()
    assert erased(store) == []
    assert path.read_bytes() == before


def test_scores_go_with_their_trace(tmp_path: Path) -> None:
    store = Store(tmp_path)
    place(store, "langfuse", "a.jsonl", "zst")
    scores = store.path("raw", "scores", "scores.csv.gz")
    scores.parent.mkdir()
    of = [{"id": f"s{n}", "trace_id": each["trace_id"], "value": "1"} for n, each in enumerate(RECORDS)]
    scores.write_bytes(gz(table(of)))
    assert "raw/scores/scores.csv.gz: 2 lines" in erased(store)
    assert gzip.decompress(scores.read_bytes()).count(b"user") == 0
    assert gzip.decompress(scores.read_bytes()).splitlines()[1:] == [
        f"s{n},{RECORDS[n]['trace_id']},1".encode() for n in (1, 2)
    ]


def test_a_withdrawal_leaves_what_came_before_it(tmp_path: Path) -> None:
    store = Store(tmp_path)
    place(store, "langfuse", "a.csv", "gz")
    assert erased(store, since=datetime(2026, 1, 5, 4, tzinfo=UTC)) == ["raw/observations_v2/a.csv.gz: 1 lines"]
    assert [user for user, _ in rows(store, "langfuse")] == [ANN, BOB, BOB]


@pytest.mark.parametrize("how", ["gz", "zst"])
def test_a_damaged_file_stays_and_is_named(tmp_path: Path, how: str) -> None:
    store = Store(tmp_path)
    path = place(store, "langfuse", "a.jsonl", how)
    path.write_bytes(path.read_bytes()[:-9])
    before = path.read_bytes()
    assert erased(store) == []
    assert path.read_bytes() == before
    assert search(store, Identifiers([ANN])).remains, "a proof names it"


def test_a_line_that_breaks_off_goes_with_its_original(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = place(store, "langfuse", "a.jsonl", "plain")
    path.write_bytes(path.read_bytes() + json.dumps(RECORDS[0]).encode()[:24] + b"\n" + b"noise\n")
    assert erased(store) == ["raw/observations_v2/a.jsonl: 3 lines, 1 names"]
    assert path.read_bytes().endswith(b"noise\n")


@pytest.mark.parametrize("user", ["42", "47114711"])
def test_a_user_whose_id_is_a_number_goes(tmp_path: Path, user: str) -> None:
    store, path = Store(tmp_path), tmp_path / "raw" / "a.jsonl"
    path.parent.mkdir()
    others = '{"user": 7, "latency_ms": 42}\n{"user": 4200, "tokens": 47114711}\n{"n": 42}\n'
    attribute = {"key": "user.id", "value": {"intValue": user}}
    span = {"traceId": "ab" * 16, "attributes": [attribute]}
    theirs = [{"user": int(user), "prompt": "hi"}, {"request": {"user_id": int(user)}}]
    theirs.append({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]})
    path.write_text(others + "".join(json.dumps(each) + "\n" for each in theirs))
    test = RecordTest(Identifiers([user]), None)
    assert [change.records for change in rewrite(store, path, test, ())] == [3]
    assert path.read_text() == others


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint32(), pa.struct({"user": pa.int64()})])
def test_a_number_in_a_column_is_a_user(tmp_path: Path, kind: pa.DataType) -> None:
    store, path = Store(tmp_path), tmp_path / "raw" / "a.parquet"
    path.parent.mkdir()
    users = [{"user": n} if pa.types.is_struct(kind) else n for n in (42, 7)]
    pq.write_table(pa.table({"user_id": pa.array(users, kind), "tokens": [7, 42]}), path)
    identifiers = Identifiers(["42"])
    assert search(store, identifiers).remains == ("raw/a.parquet",)
    assert [change.records for change in rewrite(store, path, RecordTest(identifiers, None), ())] == [1]
    assert pq.read_table(path)["tokens"].to_pylist() == [42]
    assert search(store, identifiers).remains == ()


def test_what_is_appended_meanwhile_stays(tmp_path: Path) -> None:
    """A writer that holds the file is waited for; one that came after its rewriting writes to the new one."""
    store = Store(tmp_path)
    path = place(store, "langfuse", "a.jsonl", "plain")
    late = lines([record(BOB, 5)])
    eraser = Thread(target=erased, args=[store])
    with held(path) as descriptor:
        eraser.start()
        eraser.join(0.3)  # as long as it lets the writer have the file
        os.write(descriptor, late)
    eraser.join()
    with held(path), replacing(path) as stream:
        writer = Thread(target=append, args=[path, late])
        writer.start()
        writer.join(0.1)
        stream.write(path.read_bytes())
    writer.join()
    assert ANN.encode() not in path.read_bytes()
    assert path.read_bytes().endswith(2 * late)


def test_a_bracket_on_a_line_of_its_own_stays(tmp_path: Path) -> None:
    store = Store(tmp_path)
    place(store, "langfuse", "a.jsonl", "plain")
    page = store.path("raw", "policy.txt")
    page.write_text('Answer as JSON:\n{\n  "answer": "..."\n}\n')
    before = page.read_bytes()
    assert erased(store) == ["raw/observations_v2/a.jsonl: 2 lines, 1 names"]
    assert page.read_bytes() == before


@pytest.mark.parametrize("name", ["a.pb", "a.json"])
def test_anothers_span_in_a_trace_of_theirs_stays(tmp_path: Path, name: str) -> None:
    store = Store(tmp_path)
    first, second = span(RECORDS[0]), span({**RECORDS[2], "user_id": BOB})
    second["traceId"] = first["traceId"]
    path = store.path("raw", name)
    path.parent.mkdir()
    value = {"resourceSpans": [{"resource": {}, "scopeSpans": [{"spans": [first, second]}]}]}
    if name == "a.pb":
        value = json.loads(json.dumps(value), object_hook=_with_base64)
        path.write_bytes(ParseDict(value, ExportTraceServiceRequest()).SerializeToString())
    else:
        path.write_text(json.dumps(value))
    score = store.path("raw", "scores.jsonl")
    score.write_text(json.dumps({"traceId": first["traceId"], "value": 1}) + "\n")
    assert erased(store) == [f"raw/{name}: 1 lines, 1 names", "raw/scores.jsonl: 1 lines"]
    assert [user for user, _ in rows(store, "otlp")] == [BOB]
    assert first["traceId"] in json.dumps(list(values([path]))), "it is Bob's trace too"


def test_others_stay_in_a_document_of_several(tmp_path: Path) -> None:
    """An export in one document loses the person's records; a record of theirs goes whole, whoever it names below."""
    store, path = Store(tmp_path), tmp_path / "raw" / "a.json"
    path.parent.mkdir()
    talk = {"id": "c", "messages": [{"id": "m1", "role": "user", "user_id": ANN}, {"role": "user", "user_id": BOB}]}
    below = {"id": "d", "user_id": BOB, "children": [{"id": "e", "user_id": ANN}]}
    mixed = {"id": "f", "request": {"user": ANN}, "metadata": {"user_id": BOB}}
    others = [{"id": f"other-{n}", "user_id": BOB, "text": "hello"} for n in range(2)]
    document = {"of": "export", "data": {"runs": [others[0], RECORDS[0], talk, below, mixed, others[1]]}}
    path.write_text(json.dumps(document))
    assert erased(store) == ["raw/a.json: 4 lines"]
    assert json.loads(path.read_text()) == {"of": "export", "data": {"runs": others}}


def test_a_file_whose_name_says_whose_it_was_goes(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.path("raw").mkdir()
    store.path("raw", f"{ANN}.json").write_text(json.dumps({"trace": {"id": "t", "userId": ANN}, "observations": []}))
    assert erased(store) == [f"raw/{ANN}.json: 1 lines"]
    assert list(store.path("raw").iterdir()) == []
