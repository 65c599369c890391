"""Whom a file holds, in every format that a source reads."""

from __future__ import annotations

import bz2
import csv
import errno
import gzip
import json
import os
import sqlite3
import zipfile
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from pipeline import layout
from pipeline.erasure import derived, formats, raw
from pipeline.erasure.identifiers import Identifiers
from pipeline.erasure.search import search
from pipeline.erasure.units import RecordTest
from pipeline.storage import Store
from pipeline.traces.sources import otlp_binary
from pipeline.unfinished import replacing, unfinished_name

IDS = ["u7", "user-1234567"]
"""A short id is only looked for as a whole value; a longer one as a word too."""


def jsonl(path: Path, user: str) -> None:
    path.write_text(json.dumps({"user_id": user}) + "\n")


def zipped(path: Path, user: str) -> None:
    path.write_bytes(gzip.compress(json.dumps({"user_id": user}).encode()))


def zstd(path: Path, user: str) -> None:
    path.write_bytes(pa.compress(json.dumps({"user_id": user}).encode(), codec="zstd", asbytes=True))


def table(path: Path, user: str) -> None:
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows([["id", "user_id", "input"], ["o", user, "a\nb"]])


def columns(path: Path, user: str) -> None:
    pq.write_table(pa.table({"user_id": [user], "count": [1]}), path)


def binary_columns(path: Path, user: str) -> None:
    pq.write_table(pa.table({"user_id": pa.array([user.encode(), b"\xff"], pa.large_binary())}), path)


def request(user: str) -> bytes:
    result = ExportTraceServiceRequest()
    span = result.resource_spans.add().scope_spans.add().spans.add(trace_id=b"t" * 16)
    span.attributes.add(key="enduser.idx").value.string_value = user
    return result.SerializeToString()


def protobuf(path: Path, user: str) -> None:
    path.write_bytes(request(user))


def frames(path: Path, user: str) -> None:
    text: Any = pa.compress(request(user), codec="zstd", asbytes=True)
    path.write_bytes(len(text).to_bytes(4, "big") + text)


FORMATS = {
    "a.jsonl": jsonl,
    "a.jsonl.gz": zipped,
    "a.jsonl.zst": zstd,
    "a.csv": table,
    "a.parquet": columns,
    "b.parquet": binary_columns,
    "a.pb": protobuf,
    "b.pb": frames,
}


@pytest.mark.parametrize("user", IDS)
@pytest.mark.parametrize("name", FORMATS)
def test_a_user_is_seen_in_every_format(tmp_path: Path, name: str, user: str) -> None:
    FORMATS[name](tmp_path / name, user)
    assert search(Store(tmp_path), Identifiers([user])).remains == (name,)
    assert search(Store(tmp_path), Identifiers([f"{user}8"])).remains == ()


@pytest.mark.parametrize("name", [name for name in FORMATS if not name.endswith(".parquet")])
def test_a_file_that_breaks_off_is_searched_or_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    FORMATS[name](path, IDS[1])
    whole = search(Store(tmp_path), Identifiers(["somebody-else"]))
    assert whole.remains == () and whole.bytes > 0
    path.write_bytes(path.read_bytes()[:-1])
    result = search(Store(tmp_path), Identifiers(["somebody-else"]))
    damaged = not name.endswith((".jsonl", ".csv", ".pb"))
    assert [line.startswith(f"{name}: not searched") for line in result.remains] == [True] * damaged


NESTED = [
    {"messages": [{"role": "user", "content": "write to user-1234567, please"}]},
    {"metadata": json.dumps({"by": {"who": "user-1234567"}})},
    {"metadata": json.dumps(json.dumps({"who": "user-1234567"}))},
    {"text": "line\nuser-1234567\nline"},
    {"url": "https://host/?who=USER-1234567&x"},
    {"deep": [[{"a": ["user-1234567"]}]]},
]


@pytest.mark.parametrize("place", range(len(NESTED)))
@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.jsonl", "a.db", "a.jsonl.gz", "odd.zip"])
def test_every_text_of_a_value_is_searched(tmp_path: Path, name: str, place: int) -> None:
    record, path = NESTED[place], tmp_path / name
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist([record, {}]), path)
    elif name.endswith(".arrow"):
        table = pa.Table.from_pylist([record])
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table)
    elif name.endswith(".db"):
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("create table t (v text)")
            connection.execute("insert into t values (?)", [json.dumps(record) + "x" * 9000])
            connection.commit()
    elif name.endswith(".zip"):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("log.json", json.dumps(record))
    else:
        text = json.dumps(record).encode()
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    assert search(Store(tmp_path), Identifiers(["user-1234567"])).remains == (name,)
    if not name.endswith(".db"):  # in pages of bytes words have no ends
        assert search(Store(tmp_path), Identifiers(["user-123456"])).remains == ()


def test_what_escapes_hide_is_seen(tmp_path: Path) -> None:
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in "user-1234567")
    (tmp_path / "a.json").write_text(f'{{"a": "{escaped}"}}')
    (tmp_path / "b.json").write_text(json.dumps({"a": f'{{"b": "{escaped}"}}'}))
    assert search(Store(tmp_path), Identifiers(["user-1234567"])).remains == ("a.json", "b.json")


@pytest.mark.parametrize("text", ["\u201c%s\u201d", "\u7528\u6237%s\u3002", "caf\u00e9%s", "\U0001f600%s"])
def test_an_escaped_letter_before_an_id_hides_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"a": text % "user-1234567"}))
    (tmp_path / "b.json").write_text(json.dumps({"a": json.dumps({"b": text % "user-1234567"})}))
    assert search(Store(tmp_path), Identifiers(["user-1234567"])).remains == ("a.json", "b.json")


def test_an_id_of_surrogate_pairs_is_seen_escaped(tmp_path: Path) -> None:
    user = "\U0001f98a-fox-1"
    (tmp_path / "a.json").write_text(json.dumps({"a": user}))
    (tmp_path / "b.json").write_text(json.dumps({"a": json.dumps({"b": user})}))
    assert search(Store(tmp_path), Identifiers([user])).remains == ("a.json", "b.json")


def test_what_links_point_to_is_searched_or_named(tmp_path: Path) -> None:
    root, outside = tmp_path / "data", tmp_path / "outside"
    for folder in (root, outside):
        folder.mkdir()
        jsonl(folder / "a.jsonl", "user-1234567")
    (root / "b.jsonl").symlink_to(outside / "a.jsonl")
    (root / "c.jsonl").symlink_to("a.jsonl")
    (root / "d.jsonl").symlink_to("nowhere")
    (root / "e").symlink_to(outside)
    result = search(Store(root), Identifiers(["user-1234567"]))
    assert result.remains == ("a.jsonl", "b.jsonl")
    assert result.unsearched == ("links to what lies outside the data root: e",)


def test_what_cannot_be_looked_into_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.bz2").write_bytes(bz2.compress(b"user-1234567"))
    (tmp_path / "b.gz").write_bytes(gzip.compress(gzip.compress(b"user-1234567")))
    (tmp_path / "model.safetensors").write_bytes(b"user-1234567")
    (tmp_path / "user-1234567.txt").write_text("nothing")
    result = search(Store(tmp_path), Identifiers(["user-1234567", "abc"]))
    assert [line.partition(":")[0] for line in result.remains] == ["a.jsonl.bz2", "b.gz", "user-1234567.txt"]
    assert len(result.unsearched) == 2
    assert "1 files of weights, 12 bytes" in result.unsearched[0]
    assert "1 identifiers of under 6 characters" in result.unsearched[1]


@pytest.mark.parametrize(
    "head", [b"PARE", b"ORC", b"%PDF-1.7", "\ufeff".encode("utf-16-le"), "\ufeff".encode("utf-16-be")]
)
def test_a_format_that_hides_its_texts_is_named(tmp_path: Path, head: bytes) -> None:
    (tmp_path / "a").write_bytes(head + "user-1234567".encode("utf-16-le"))
    (line,) = search(Store(tmp_path), Identifiers(["user-1234567"])).remains
    assert line == "a: not searched, a format that no source reads"


def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shut").mkdir()
    (tmp_path / "shut" / "a.txt").write_text("user-1234567")
    scandir = os.scandir

    def refusing(path: str) -> Any:
        if Path(path).name == "shut":
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    assert search(Store(tmp_path), Identifiers(["user-1234567"])).remains == ("shut: not searched, Permission denied",)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('2026-01-05 INFO asked by "u7" for u7', '2026-01-05 INFO asked by "[erased]" for u7'),
        (r"sent {\"user\": \"u7\", \"n\": 1}", r"sent {\"user\": \"[erased]\", \"n\": 1}"),
        ('sent {"user_id": 42, "n": 42}', 'sent {"user_id": null, "n": 42}'),
    ],
)
def test_a_short_id_leaves_the_text_around_it(text: str, left: str) -> None:
    assert Identifiers(["u7", "42"]).redacted(text) == left


WORDS = b" ".join(b"%d" % (number * number) for number in range(200)) + b" user-1234567"
"""Many enough for the id to be packed in bits."""


def avro(codec: bytes, block: bytes) -> bytes:
    """A file of one block; texts are preceded by their length, twice as written."""
    pairs = {b"avro.codec": codec, b"avro.schema": b'"string"'}
    texts = b"".join(bytes([2 * len(each)]) + each for pair in pairs.items() for each in pair)
    mark, length = b"0123456789abcdef", 2 * len(block)
    size = bytes([length & 0x7F | 0x80, length >> 7])
    return b"Obj\x01" + bytes([2 * len(pairs)]) + texts + b"\0" + mark + b"\2" + size + block + mark


def test_avro_is_unpacked_or_named(tmp_path: Path) -> None:
    packer = zlib.compressobj(wbits=-15)
    packed = packer.compress(b"\x18user-1234567") + packer.flush()
    for name, content in {
        "a.avro": avro(b"deflate", packed),
        "b.avro": avro(b"deflate", packed)[:-3],
        "c.avro": avro(b"zstandard", zstd_of(WORDS)),
        "d.avro": avro(b"deflate", packed)[:20],
    }.items():
        (tmp_path / name).write_bytes(content)
    assert search(Store(tmp_path), Identifiers(["user-1234567"])).remains == (
        "a.avro",
        "b.avro: not searched, Avro that breaks off",
        "c.avro: not searched, Avro compressed as zstandard",
        "d.avro: not searched, Avro that breaks off",
    )


def test_a_stream_of_arrow_is_searched(tmp_path: Path) -> None:
    table = pa.table({"user_id": ["abc", "user-1234567", "abc"]})
    with pa.ipc.new_stream(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    assert search(Store(tmp_path), Identifiers(["user-1234567"])).remains == ("a.arrow",)


def test_a_compressed_request_beyond_its_limit_is_named(tmp_path: Path) -> None:
    packed = zstd_of(WORDS + b" " * otlp_binary.MAX_INFLATED)
    (tmp_path / "a.bin").write_bytes(len(packed).to_bytes(4, "big") + packed)
    (line,) = search(Store(tmp_path), Identifiers(["user-1234567"])).remains
    assert line.startswith("a.bin: not searched, a compressed request")


def zstd_of(content: bytes) -> bytes:
    return pa.compress(content, "zstd", asbytes=True)


def corrupt_parquet(path: Path) -> None:
    pq.write_table(pa.table({"user_id": [f"{n:09}" for n in range(3000)]}), path, use_dictionary=False)
    content = path.read_bytes()
    path.write_bytes(content[:8] + b"\xff" * 2000 + content[2008:])


def zip_of_another_compression(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.txt", "user-1234567")
    content = bytearray(path.read_bytes())
    entry = content.rfind(b"PK\x01\x02")
    content[8] = content[entry + 10] = 9  # deflate64
    path.write_bytes(content)


def csv_of_another_encoding(path: Path) -> None:
    path.write_bytes("Gr\u00f6\u00dfe,name\n1,x\n".encode("latin-1"))


DAMAGED = {"a.parquet": corrupt_parquet, "a.zip": zip_of_another_compression, "a.csv": csv_of_another_encoding}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_file_that_cannot_be_read_stops_no_erasure(tmp_path: Path, name: str) -> None:
    store, path = Store(tmp_path), tmp_path / name
    DAMAGED[name](path)
    before = path.read_bytes()
    test = RecordTest(Identifiers(["user-1234567"]), None)
    assert raw.owned([path], test) == (set(), set())
    assert list(raw.rewrite(store, path, test, ())) == []
    assert path.read_bytes() == before
    (line,) = search(store, test.identifiers).remains
    assert line.startswith(f"{name}: not searched, ")


@pytest.mark.parametrize("folder", [layout.PRODUCTION, layout.REWARDS])
def test_a_sweep_takes_the_dead_and_leaves_the_living(tmp_path: Path, folder: str) -> None:
    store, path = Store(tmp_path), tmp_path / folder / "a.jsonl"
    dead = unfinished_name(path)
    with replacing(path) as stream:
        dead.write_text("half")
        assert derived.sweep(store) == 1
        stream.write(b"whole")
    assert (dead.exists(), path.read_text()) == (False, "whole")


@given(st.lists(st.binary(max_size=40), max_size=30), st.integers(0, 60))
def test_windows_overlap_and_split_no_word(pieces: list[bytes], place: int) -> None:
    """An identifier at any place of a stream stands whole, between its own neighbours, in one of its windows."""
    stream = b"".join(pieces)
    at = min(place, len(stream))
    planted = stream[:at] + b" user-1234567 " + stream[at:]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formats, "WINDOW", 16)
        chunks = [planted[n : n + 7] for n in range(0, len(planted), 7)]
        seen = list(formats.windows(chunks, Identifiers(["user-1234567"]).longest))
    assert any(b" user-1234567 " in window for window in seen)
    assert not any(window.startswith(b"ser-1") for window in seen)
