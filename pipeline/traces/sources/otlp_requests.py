"""The export requests of a file of OTLP (a line each, the whole file as one, or each after its length), from JSON or
protobuf into the shapes of `otlp`."""

from base64 import b64decode
from collections.abc import Iterator
from itertools import chain
from typing import Any

import msgspec

from pipeline.traces.sources import otlp
from pipeline.traces.sources.files import CHUNK, WHOLE, bare_name, decompressed
from pipeline.traces.sources.lines import MARK, LineBatch, Pieces, as_one, batched, begun, blocks, may_be_array
from pipeline.traces.sources.protocol import MAX_LINE, Broken

FORMATS = (".pb", ".binpb", ".proto", ".bin")
MAX_INFLATED = 4 * MAX_LINE
"""Bytes of a request that was compressed alone."""
_FIRST_FIELD = b"\x0a"
"""A request begins with its field 1, of a length that follows; a length before it would be one of over 160 MB."""
_PREFIX = 4


def decode(text: bytes) -> otlp.ExportRequest:
    """A request in protobuf or JSON, which may be compressed alone. Raises msgspec.DecodeError, or ValidationError for
    one that holds neither spans nor log records."""
    if text.startswith(b"\x28\xb5\x2f\xfd"):
        text = _inflated(text)
    if not text.startswith(_FIRST_FIELD) or text.lstrip()[:1] == b"{":
        return otlp.decode(text)
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    # Both kinds have the same numbers for all but the records, and a log's have a time where a span has its id.
    traces = _parsed(ExportTraceServiceRequest, text)
    spans = [] if traces is None else [each.record for each in otlp.records(traces)]
    if traces is not None and (not spans or any(len(span["traceId"]) == 32 for span in spans)):
        return traces
    logs = _parsed(ExportLogsServiceRequest, text)
    if logs is None:
        raise msgspec.DecodeError("the request is no protobuf of OTLP")
    times = {"timeUnixNano", "observedTimeUnixNano"}
    if all(times.isdisjoint(each.record) for each in otlp.records(logs)):
        raise msgspec.ValidationError("the request holds neither spans nor log records")
    return logs


def _parsed(kind: Any, text: bytes) -> otlp.ExportRequest | None:
    """The request as OTLP's JSON has it: protobuf's own JSON writes ids in base64, OTLP's in hexadecimal."""
    from google.protobuf.json_format import MessageToDict
    from google.protobuf.message import DecodeError

    try:
        tree = MessageToDict(kind.FromString(text))
    except DecodeError:
        return None
    request = msgspec.convert(tree, otlp.ExportRequest)
    for received in otlp.records(request):
        received.record.setdefault("startTimeUnixNano", 0)
        for id in ("traceId", "spanId", "parentSpanId"):
            received.record[id] = b64decode(received.record.get(id, "")).hex()
    return request


def _inflated(text: bytes) -> bytes:
    size, pieces = 0, list[bytes]()
    try:
        for piece in decompressed(iter([text]), ""):
            size += len(piece)
            if size > MAX_INFLATED:
                raise msgspec.DecodeError(f"the request inflates to over {MAX_INFLATED} bytes")
            pieces.append(piece)
    except Broken as error:
        raise msgspec.DecodeError(f"{error}") from error
    return b"".join(pieces)


def requests(name: str, chunks: Iterator[bytes], max_size: int = MAX_LINE) -> Iterator[LineBatch]:
    """The requests of a file: each after its length in four bytes, most significant first, as the Collector's file
    exporter writes it (`format: proto`; with `compression: zstd` each is compressed alone, JSON too); one, in protobuf
    or in JSON over many lines; or one in each line or element of an array."""
    head, rest = begun(chunks, lambda head: head[:1] == b"\0" or b"\n" in head.lstrip() or len(head) > CHUNK)
    stored, is_binary = chain([head], rest), bare_name(name).endswith(FORMATS)
    if is_binary and head.startswith(_FIRST_FIELD):
        return as_one(stored, f"a request of over {max_size} bytes", max_size)
    if is_binary or head.startswith(b"\0"):
        return batched(_framed(stored, max_size), f"a request of over {max_size} bytes")
    if head.removeprefix(MARK).lstrip().partition(b"\n")[0].strip() == b"{":
        return as_one(chain([head.removeprefix(MARK)], rest), f"a request of over {WHOLE} bytes")
    return blocks(stored, array=may_be_array(name))


def _framed(chunks: Iterator[bytes], max_size: int) -> Pieces:
    held, skip = b"", 0
    for chunk in chunks:
        held, skip = (b"", skip - len(chunk)) if len(chunk) <= skip else (held + chunk[skip:], 0)
        while len(held) >= _PREFIX:
            end = _PREFIX + int.from_bytes(held[:_PREFIX], "big")
            if end > _PREFIX + max_size:
                yield None
                skip = max(end - len(held), 0)
            elif len(held) < end:
                break
            else:
                yield [held[_PREFIX:end]]
            held = held[end:]
    if held or skip:
        raise Broken("the file breaks off in a request")
