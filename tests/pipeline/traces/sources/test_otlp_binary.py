"""OTLP in protobuf, made with its own classes, is read as the same requests in JSON."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, ResourceMetrics, ScopeMetrics

from pipeline.traces.rows import Rows
from pipeline.traces.sources.otel import Otel
from pipeline.traces.sources.otlp_binary import requests

from .conftest import read, reasons, write
from .test_otel import ANSWERED, ASKED, event, request, span
from .test_otel_logs import details, logs, record

METRIC = Metric(name="latency", unit="s")
METRICS = ExportMetricsServiceRequest(
    resource_metrics=[ResourceMetrics(scope_metrics=[ScopeMetrics(metrics=[METRIC])])]
)


def in_protobuf(value: dict[str, Any]) -> bytes:
    """OTLP's JSON writes ids in hex, where protobuf's own JSON has base64."""
    binary = json.loads(json.dumps(value), object_hook=_base64_ids)
    kind = ExportTraceServiceRequest if "resourceSpans" in value else ExportLogsServiceRequest
    return ParseDict(binary, kind()).SerializeToString()


def _base64_ids(fields: dict[str, Any]) -> dict[str, Any]:
    ids = {key: base64.b64encode(bytes.fromhex(fields[key])).decode() for key in ("traceId", "spanId") if key in fields}
    return {**fields, **ids}


def framed(*texts: bytes) -> bytes:
    return b"".join(len(text).to_bytes(4, "big") + text for text in texts)


def spans() -> list[dict[str, Any]]:
    by_attribute = {"gen_ai.input.messages": ASKED, "gen_ai.output.messages": ANSWERED, "user_consent": True}
    by_event = [
        event("gen_ai.user.message", content="Hi"),
        event("gen_ai.choice", message='{"content": "Yes"}', finish_reason="stop"),
    ]
    numbers = {"gen_ai.usage.input_tokens": 7, "share": 0.5, "gen_ai.response.finish_reasons": ["stop"]}
    return [
        request(span({**by_attribute, **numbers}), region="eu"),
        request(span({}, spanId="eee19b7ec3c1b175", events=by_event), span({"error.type": "x"}, status={"code": 2})),
    ]


def of_json(folder: Path, values: list[dict[str, Any]]) -> Rows:
    write(folder, "a.jsonl", values)
    return read(Otel(str(folder)))


def plain(rows: Rows) -> list[dict[str, Any]]:
    return [{**msgspec.to_builtins(trace), "line": 0} for trace in rows.traces]


@pytest.mark.parametrize("dropped", ["droppedAttributesCount", "droppedEventsCount", "event", "record"])
def test_what_was_dropped_is_counted_as_in_json(tmp_path: Path, dropped: str) -> None:
    changes: dict[str, Any] = {dropped: 1}
    if dropped == "event":
        changes = {"events": [{"name": "e", "attributes": [], "droppedAttributesCount": 1}]}
    by_attribute = {"gen_ai.input.messages": ASKED, "gen_ai.output.messages": ANSWERED}
    value = logs(details(droppedAttributesCount=1)) if dropped == "record" else request(span(by_attribute, **changes))
    folder = tmp_path / "binary"
    folder.mkdir()
    (folder / "a.pb").write_bytes(framed(in_protobuf(value)))
    (trace,) = read(Otel(str(folder))).traces
    assert trace.unreadable == "input: the SDK dropped attributes of the span"
    assert plain(of_json(tmp_path / "json", [value])) == [{**msgspec.to_builtins(trace), "line": 0}]


@pytest.mark.parametrize("form", ["framed", "gzip", "zstd in frames", "json in frames"])
def test_requests_after_their_lengths_are_as_in_json(tmp_path: Path, form: str) -> None:
    import pyarrow as pa

    values = [*spans(), logs(details(spanId="eee19b7ec3c1b176"))]
    texts = [json.dumps(value).encode() if form == "json in frames" else in_protobuf(value) for value in values]
    if form == "zstd in frames":
        texts = [pa.compress(text, codec="zstd", asbytes=True) for text in texts]
    content = framed(*texts)
    folder = tmp_path / "binary"
    folder.mkdir()
    (folder / "a.pb").write_bytes(gzip.compress(content) if form == "gzip" else content)
    rows = read(Otel(str(folder)))
    assert plain(rows) == plain(of_json(tmp_path / "json", values))
    assert len(rows.traces) == 4 and rows.rejected == []


def test_a_file_may_be_one_request(tmp_path: Path) -> None:
    value = request(span({"gen_ai.input.messages": ASKED, "gen_ai.output.messages": ANSWERED}))
    folder = tmp_path / "binary"
    folder.mkdir()
    (folder / "a.pb").write_bytes(in_protobuf(value))
    assert plain(read(Otel(str(folder)))) == plain(of_json(tmp_path / "json", [value]))


def test_frames_are_known_without_their_name(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(framed(*map(in_protobuf, spans())))
    assert len(read(Otel(str(tmp_path))).traces) == 3


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (framed(b"\xff\xff\xff"), "malformed:1:None"),
        (framed(METRICS.SerializeToString()), "schema:1:None"),
        (framed(in_protobuf(spans()[0]))[:-3], "truncated_file:1:None"),
        (b"\0\0\0", "truncated_file:1:None"),
        (b"\x0a\xff", "malformed:1:None"),
    ],
)
def test_what_is_no_request_is_counted(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "a.pb").write_bytes(content)
    rows = read(Otel(str(tmp_path)))
    assert (rows.traces, reasons(rows)) == ([], [reason])


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_a_request_over_the_limit_is_skipped(step: int) -> None:
    content = framed(b"a" * 5, b"b" * 50, b"c" * 5)
    chunks = iter([content[n : n + step] for n in range(0, len(content), step)])
    batches = list(requests(chunks, max_size=10))
    assert [text for batch in batches for text in batch.texts] == [b"aaaaa", b"ccccc"]
    assert [str(rest.reason) for batch in batches for rest in batch.rejected] == ["too_long"]


def test_log_records_are_told_from_spans(tmp_path: Path) -> None:
    (tmp_path / "a.pb").write_bytes(in_protobuf(logs(record("app.started"))))
    assert reasons(read(Otel(str(tmp_path)))) == ["not_generation:1:None"]
