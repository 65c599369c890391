"""Whom a file holds, in every format that a source reads."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from pipeline.erasure.search import search
from pipeline.storage import Store

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
    assert search(Store(tmp_path), [user]).remains == (name,)
    assert search(Store(tmp_path), [f"{user}8"]).remains == ()


@pytest.mark.parametrize("name", [name for name in FORMATS if not name.endswith(".parquet")])
def test_a_file_that_breaks_off_is_searched(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    FORMATS[name](path, IDS[1])
    path.write_bytes(path.read_bytes()[:-1])
    assert search(Store(tmp_path), ["somebody-else"]).remains == ()
