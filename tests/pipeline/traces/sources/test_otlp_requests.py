"""Where a request of OTLP begins and ends in a file, and what a reader of spans says of files without one."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, ResourceMetrics, ScopeMetrics

from pipeline.traces.sources import otel
from pipeline.traces.sources.otel import Otel
from pipeline.traces.sources.otlp_requests import requests

from .conftest import read, reasons, write
from .spans import TEXTS, in_protobuf, logs, message, request, span

SCOPE = ScopeMetrics(metrics=[Metric(name="latency", unit="s")])
METRICS = ExportMetricsServiceRequest(resource_metrics=[ResourceMetrics(scope_metrics=[SCOPE])])
CALLS = [request(span(TEXTS), region="eu"), request(span(TEXTS, spanId="eee19b7ec3c1b175"))]


def framed(*texts: bytes) -> bytes:
    return b"".join(len(text).to_bytes(4, "big") + text for text in texts)


BINARY = framed(*map(in_protobuf, CALLS))


@pytest.mark.parametrize(
    ("name", "content", "count"),
    [
        ("a.pb", in_protobuf(CALLS[0]), 1),
        ("a.pb", BINARY, 2),
        ("a.json", BINARY, 2),  # known by the length at its beginning
        ("a.pb", gzip.compress(BINARY), 2),
        ("a.pb", framed(*(pa.compress(in_protobuf(call), codec="zstd", asbytes=True) for call in CALLS)), 2),
        ("a.pb", framed(*(json.dumps(call).encode() for call in CALLS)), 2),
        ("a.json", json.dumps(CALLS[0], indent=2).encode(), 1),
        ("a.json", b"\xef\xbb\xbf" + json.dumps(CALLS[0], indent=2).encode(), 1),
        ("a.json", json.dumps(CALLS).encode(), 2),
    ],
)
def test_requests_are_those_of_the_lines(tmp_path: Path, name: str, content: bytes, count: int) -> None:
    (tmp_path / name).write_bytes(content)
    write(tmp_path / "lines", "a.jsonl", CALLS[:count])
    rows, wanted = read(Otel(str(tmp_path / name))), read(Otel(str(tmp_path / "lines")))
    assert (rows.traces, rows.rejected, len(rows.traces)) == (wanted.traces, [], count)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.pb", framed(b"\xff\xff\xff"), "malformed:1:None"),
        ("a.pb", framed(METRICS.SerializeToString()), "schema:1:None"),
        ("a.pb", framed(in_protobuf(CALLS[0]))[:-3], "truncated_file:1:None"),
        ("a.pb", b"\0\0\0", "truncated_file:1:None"),
        ("a.pb", b"\x0a\xff", "malformed:1:None"),
        ("a.pb", in_protobuf(logs(message("app.started", "up"))), "not_generation:1:None"),
        ("a.json", json.dumps(CALLS[0], indent=2).encode()[:200], "malformed:1:None"),
    ],
)
def test_what_is_no_request_is_counted(tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    (tmp_path / name).write_bytes(content)
    rows = read(Otel(str(tmp_path)))
    assert (rows.traces, reasons(rows)) == ([], [reason])


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_a_request_over_the_limit_is_skipped(step: int) -> None:
    content = framed(b"a" * 5, b"b" * 50, b"c" * 5)
    chunks = iter([content[n : n + step] for n in range(0, len(content), step)])
    batches = list(requests("a.pb", chunks, max_size=10))
    assert [text for batch in batches for text in batch.texts] == [b"aaaaa", b"ccccc"]
    assert [str(rest.reason) for batch in batches for rest in batch.rejected] == ["too_long"]


def test_what_waits_is_bounded_and_every_row_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otel, "HELD", 5)
    lone = [span({}, spanId=f"{n:016x}") for n in range(20)]
    texts = [message("gen_ai.user.message", {"content": "Hi"}), message("gen_ai.choice", {"message": {"content": "2"}})]
    write(tmp_path, "spans.jsonl", [request(*lone), logs(*texts), request(span({}))])
    rows = read(Otel(str(tmp_path)))
    assert reasons(rows) == [f"no_content:{n}:2026-01-05" for n in range(1, 21)]
    assert [trace.completion for trace in rows.traces] == ["2"]
